/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Markers: a coarse set of all entries, each truncated to one short prefix. It is
 * tested before any shape: without a mark, no shape is probed, so clean traffic
 * costs the same however many shapes are in use. The twin of filter/membership's
 * Marks.
 *
 * IPv4: a bitmap of the 2^24 networks /24 that entries overlap, one for sources and
 * one for destinations. IPv6: a cascade with one line for each key, of the networks
 * of one prefix length that entries overlap.
 */
#ifndef WEIR_MARKER_H
#define WEIR_MARKER_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "cascade.h"
#include "key.h"

/* When a shape is probed: always, or if the packet's source or destination is marked. */
#define GATE_ALWAYS 1
#define GATE_SRC    2
#define GATE_DST    4

#define MARK4_WORDS (1 << 18) /* of 64 bits: one bit for each /24 */

static __always_inline int mark4_test(void *map, __u32 base, __be32 addr)
{
	__u32 net = bpf_ntohl(addr) >> 8;
	__u32 i = base + net / 64;
	__u64 *word = bpf_map_lookup_elem(map, &i);

	return word && *word >> (net % 64) & 1;
}

static __always_inline int mark6_test(void *map, __u32 lines, const volatile struct shape *s,
				      const struct packet *p, const volatile struct secret *secret)
{
	__u64 h = packet_hash(KEY_V6, s, p, secret);
	struct line *l = line_at(map, lines, h);

	return l && line_test(l, h, LINE_BITS_MAX);
}

#endif
