/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The reach of a set: a bit for each network that any key of it touches, by source or by
 * destination. One read says of most packets that no key matches, whatever the shapes. The
 * twin of filter/membership's Reach, which documents the layout.
 */
#ifndef WEIR_REACH_H
#define WEIR_REACH_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "array.h"
#include "marker.h"

/* Geometry of a reach, constants of the program. */
struct reach {
	__u32 shift;	/* of an address to the number of its network; 0: there is no reach */
	__u32 gates_v4; /* the sides by which keys of the family have bits */
	__u32 gates_v6;
};

/* Whether a key touches the network of an address, which begins with a word. */
static __always_inline int reach_test(const volatile struct reach *r, struct array map, int dst,
				      __u8 family, __be32 first)
{
	__u64 host = bpf_ntohl(first), net = host >> r->shift;
	const volatile __u64 *word;

	if (family == 6)
		net ^= host & ((1ULL << r->shift) - 1);
	if (dst)
		net += 1ULL << (32 - r->shift);
	word = entry_at(map, net / 64, sizeof(*word));
	return !word || *word >> (net % 64) & 1; /* it is never null: each network has a bit */
}

/* Whether a key may match a packet whose addresses begin with these words. */
static __always_inline int is_reached(const volatile struct reach *r, struct array map, __u8 family,
				      __be32 src, __be32 dst)
{
	__u32 gates = family == 4 ? r->gates_v4 : r->gates_v6;

	return !r->shift || gates & GATE_ALWAYS ||
	       (gates & GATE_SRC && reach_test(r, map, 0, family, src)) ||
	       (gates & GATE_DST && reach_test(r, map, 1, family, dst));
}

#endif
