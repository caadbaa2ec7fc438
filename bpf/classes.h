/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Classes of networks, whose keys have more bits in the cascade than others: the twin of
 * filter/membership's Classes. The first line of a key has up to four bits, by bits 23 … 0
 * of its hash. Once all of them are set, bits 28 … 24 become the number of extra bits, so
 * that the class of most packets is not looked up.
 */
#ifndef WEIR_CLASSES_H
#define WEIR_CLASSES_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "key.h"
#include "packet.h"

#define CLASS_BITS  11
#define CLASSES	    (1 << CLASS_BITS)
#define CLASS_SHIFT 24
#define CLASS_MASK  31ULL

/* The bits of a network's address. */
#define CLASS4_BITS 16
#define CLASS6_BITS 32

/* The last number is for keys without a class. */
volatile const __u8 block_classes[CLASSES + 1] = {};

/*
 * Flags in p->open, above the gates: whether the keys of the shape that is probed have the
 * class of the source's network or of the destination's, and whether these are IPv4. The
 * lookup of the class reads these instead of the shape, whose number the verifier would
 * track.
 */
#define CLASS_SRC   8
#define CLASS_DST   16
#define CLASS_V4    32
#define CLASS_FLAGS (CLASS_SRC | CLASS_DST | CLASS_V4)

/*
 * Sets these flags for a shape: the source has the class if the shape has all bits of its
 * network, otherwise the destination, on the same condition.
 */
static __always_inline void set_class_side(struct packet *p, const volatile struct shape *s)
{
	__u32 head = s->head, v6 = head & FIELD_V6, least = v6 ? CLASS6_BITS : CLASS4_BITS;
	__u32 side = v6 ? 0 : CLASS_V4;

	if ((head >> 8 & 0xff) >= least) /* bits of the source */
		side |= CLASS_SRC;
	else if ((head >> 16 & 0xff) >= least)
		side |= CLASS_DST;
	p->open = (p->open & ~CLASS_FLAGS) | side;
}

/*
 * The number of extra bits of a packet's key, by the class of its network: factor, an odd
 * secret of the generation, places networks, so that no one can choose which share a class.
 */
static __always_inline __u64 class_bits(const struct packet *p, __u32 factor)
{
	__u32 network;

	if (p->open & CLASS_SRC)
		network = p->src[0];
	else if (p->open & CLASS_DST)
		network = p->dst[0];
	else
		return block_classes[CLASSES];
	if (p->open & CLASS_V4) /* the lean path does not set p->family */
		network &= bpf_htonl(~0U << (32 - CLASS4_BITS));
	return block_classes[network * factor >> (32 - CLASS_BITS)];
}

/* The hash of the key with that number in it. */
static __always_inline __u64 with_class(__u64 h, const struct packet *p, __u32 factor)
{
	return (h & ~(CLASS_MASK << CLASS_SHIFT)) | class_bits(p, factor) << CLASS_SHIFT;
}

static __always_inline __u32 class_extra(__u64 h)
{
	return h >> CLASS_SHIFT & CLASS_MASK;
}

#endif
