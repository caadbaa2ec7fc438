/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The directory of IPv4 prefixes: which lengths may match an address, in one read. It
 * has a word for each network of one length, and is asked before the quotient table,
 * which takes a read for each length. The twin of filter/membership's Directory, which
 * documents the layout.
 */
#ifndef WEIR_DIRECTORY_H
#define WEIR_DIRECTORY_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "array.h"

/* Geometry of a directory, constants of the program. */
struct directory {
	__u32 shift; /* of an address to the number of its network; 0: there is no directory */
	__u32 parts; /* of a network: the lower bits of its word */
	__u32 src;   /* words of sources, which come first, or 0 */
	__u32 dst;   /* words of destinations, or 0 */
};

/* The word of an address, or 0 if no prefix touches its part. */
static __always_inline __u64 directory_read(const volatile struct directory *d, struct array map,
					    __u32 base, __be32 addr)
{
	__u64 host = bpf_ntohl(addr);
	__u64 part = ((host << (32 - d->shift) & 0xffffffff) * d->parts) >> 32;
	__u32 i = base + (host >> d->shift);
	const volatile __u64 *word = entry_at(map, i, sizeof(*word));
	__u64 w;

	if (!word) /* impossible: the map has `src` + `dst` words */
		return 0;
	w = *word;
	return w & -(w >> part & 1);
}

/* The lengths that may match: a bit for each, in the order of lookups. */
static __always_inline __u32 open_lengths(const volatile struct directory *d, struct array map,
					  __be32 src, __be32 dst)
{
	__u64 open = 0;

	if (d->src)
		open = directory_read(d, map, 0, src);
	if (d->dst)
		open |= directory_read(d, map, d->src, dst);
	return open >> d->parts;
}

/* The number of the first bit that is set, by a de Bruijn sequence. */
static volatile const __u8 bit_numbers[32] = {0,  1,  28, 2,  29, 14, 24, 3,  30, 22, 20,
					      15, 25, 17, 4,  8,  31, 27, 13, 23, 21, 19,
					      16, 7,  26, 12, 18, 6,  11, 5,  10, 9};

static __always_inline __u32 first_bit(__u32 x)
{
	return bit_numbers[(x & -x) * 0x077cb531U >> 27];
}

#endif
