/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A set of listed keys, blocked or allowed. An exact set has its IPv4 addresses and
 * prefixes in a quotient table; where there are many lengths, a directory says which
 * to look up. All else is behind markers, then, for each shape in use, in the cascade
 * and the table that confirms it. Shapes are tuple space search (Srinivasan, Suri and
 * Varghese, 1999). The twin of filter/membership's Set.
 */
#ifndef WEIR_SET_H
#define WEIR_SET_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "cascade.h"
#include "classes.h"
#include "directory.h"
#include "key.h"
#include "marker.h"
#include "packet.h"
#include "quotient.h"
#include "reach.h"

#define MAX_SHAPES 32 /* of a kind */

/*
 * As many shapes are matched inline, of whatever kind or of each. The verifier walks a
 * loop over many more than once for each of them.
 */
#define FEW_SHAPES  12
#define FEW_OF_EACH 7

/* As many lengths of prefixes have code of their own on the lean path, with constant masks. */
#define FEW_LENGTHS 4

/* The list number where no table has it; lists are numbered from 1. */
#define LIST_UNKNOWN 0
#define LIST_NONE    -1

/*
 * A length of IPv4 prefixes on one side: the masks of the packet's addresses, in
 * network order, one of them 0. The key in the quotient table is the masked address
 * in host order, shifted, and tail, which distinguishes lengths and sides.
 */
struct prefix_length {
	__u64 tail;
	__u32 src_mask;
	__u32 dst_mask;
};

/*
 * Geometry and shapes of a set, constants of the program. A set without lines, of
 * its own or of the quotient table, is empty. Prefixes are probed first, then the
 * shapes, both in order; the first match counts.
 */
struct key_set {
	struct quotient quotient; /* of IPv4 prefixes; without lines, v4 has their shapes */
	__u32 n_prefixes;
	__u32 prefix_shift; /* of an address in its key */
	struct prefix_length prefixes[MAX_SHAPES];
	__u32 lines;
	__u32 first;   /* bits in the first line */
	__u32 rest;    /* bits in further lines; 0: there are none */
	__u32 buckets; /* 0: approximate, without a table; allow lists always have one */
	__u32 marks6_lines;
	__u32 gates_v4; /* all gates of the family's shapes */
	__u32 gates_v6;
	__u32 n_v4;
	__u32 n_v4_flow;
	__u32 n_v6;
	__u32 n_v6_flow;
	__u32 hot_buckets; /* 0: all keys have k bits, or those of their class */
	__u32 classes;	   /* not 0: places networks in those of the block set, see classes.h */
	struct shape mark6_src; /* the shape of marks of IPv6 sources */
	struct shape mark6_dst;
	struct shape v4[MAX_SHAPES];
	struct shape v4_flow[MAX_SHAPES];
	struct shape v6[MAX_SHAPES];
	struct shape v6_flow[MAX_SHAPES];
	struct directory directory; /* of the prefixes in the quotient table */
	struct reach reach;	    /* of allow lists */
};

/* The maps of a set. */
struct set_maps {
	void *lines;
	void *marks4;
	void *marks6;
	struct quotient_maps prefixes;
	struct array directory;
	/*
	 * Returns the number of the list with a prefix of a length that a directory has
	 * left open, or LIST_NONE. A global function, or 0 where there is no directory.
	 */
	int (*open_match)(__u32 open, __u32 src, __u32 dst);
	/*
	 * Returns the number of the list that contains the key with hash h, whose
	 * first line has passed, or LIST_NONE. Where there are many shapes it is a
	 * global function: inline, the verifier would walk it again for each.
	 */
	int (*confirm)(__u64 h);
	/*
	 * Returns the list by which a match ends the search, or 0: see rules.h. 0 where the
	 * first match does.
	 */
	int (*settle)(__u32 list);
};

/*
 * Sets p->list to the number of the list that contains the key with hash h, or
 * leaves it at LIST_NONE. Returns whether the search is over.
 */
static __always_inline int set_probe(const volatile struct key_set *s, struct set_maps maps,
				     struct packet *p, __u64 h)
{
	struct line *l = line_at(maps.lines, s->lines, h);

	if (!l) /* impossible; ending here saves the verifier a path to the next shape */
		return 1;
	if (!line_test(l, h, s->first))
		return 0;
	if (s->classes)
		h = with_class(h, p, s->classes);
	if (!s->hot_buckets && !s->classes && !s->buckets && s->rest <= LINE_BITS_MAX)
		p->list = rest_test(maps.lines, s->lines, s->rest, h) ? LIST_UNKNOWN : LIST_NONE;
	else
		p->list = maps.confirm(h);
	if (maps.settle && p->list != LIST_NONE) {
		int list = maps.settle(p->list);

		p->list = list ? list : LIST_NONE;
	}
	return p->list != LIST_NONE;
}

static __always_inline int is_empty(const volatile struct key_set *s)
{
	return !s->lines && !s->quotient.lines;
}

static __always_inline __u32 set_shapes(const volatile struct key_set *s)
{
	return s->n_prefixes + s->n_v4 + s->n_v4_flow + s->n_v6 + s->n_v6_flow;
}

/* Whether the shapes are so few that the verifier can walk all that match them inline. */
static __always_inline int has_few_shapes(const volatile struct key_set *s)
{
	__u32 n = set_shapes(s);

	return n <= FEW_SHAPES ||
	       (n <= 4 * FEW_OF_EACH && s->n_v4 <= FEW_OF_EACH && s->n_v4_flow <= FEW_OF_EACH &&
		s->n_v6 <= FEW_OF_EACH && s->n_v6_flow <= FEW_OF_EACH);
}

/*
 * Probes the shapes of one form whose gates are open, in order, up to the first
 * that matches. Returns whether the search is over. Their number is read in each
 * iteration, since the verifier walks half as much again with a copy on the stack.
 */
static __always_inline int probe_shapes(const volatile struct key_set *s, struct set_maps maps,
					struct packet *p, const volatile struct secret *secret,
					enum key_form form, const volatile struct shape *shapes,
					const volatile __u32 *n)
{
	for (int i = 0; i < MAX_SHAPES && i < *n; i++) {
		checkpoint();
		if (!(shapes[i].gate & p->open))
			continue;
		if (is_flow(form) && shapes[i].ports_mask && !p->has_ports)
			continue;
		if (s->classes)
			set_class_side(p, &shapes[i]);
		if (set_probe(s, maps, p, packet_hash(form, &shapes[i], p, secret)))
			return 1;
	}
	return 0;
}

/* The gates of IPv4 shapes that the packet's marks open. */
static __always_inline __u32 open_gates_v4(const volatile struct key_set *s, struct set_maps maps,
					   const struct packet *p)
{
	__u32 open = GATE_ALWAYS;

	if (s->gates_v4 & GATE_SRC && mark4_test(maps.marks4, 0, p->src[0]))
		open |= GATE_SRC;
	if (s->gates_v4 & GATE_DST && mark4_test(maps.marks4, MARK4_WORDS, p->dst[0]))
		open |= GATE_DST;
	return open;
}

static __always_inline __u32 open_gates_v6(const volatile struct key_set *s, struct set_maps maps,
					   const struct packet *p,
					   const volatile struct secret *secret)
{
	__u32 open = GATE_ALWAYS;

	if (s->gates_v6 & GATE_SRC &&
	    mark6_test(maps.marks6, s->marks6_lines, &s->mark6_src, p, secret))
		open |= GATE_SRC;
	if (s->gates_v6 & GATE_DST &&
	    mark6_test(maps.marks6, s->marks6_lines, &s->mark6_dst, p, secret))
		open |= GATE_DST;
	return open;
}

/* The number of the list with the prefix of the i-th length that ends the search, or 0. */
static __always_inline __u32 length_find(const volatile struct key_set *s, struct set_maps maps,
					 __u32 i, __u32 src, __u32 dst)
{
	const volatile struct prefix_length *l = &s->prefixes[i];
	__u64 addr = bpf_ntohl((src & l->src_mask) | (dst & l->dst_mask));

	__u32 list = quotient_find(&s->quotient, maps.prefixes, addr << s->prefix_shift | l->tail);

	return list && maps.settle ? maps.settle(list) : list;
}

/* The same of the lengths that a directory has left open. */
static __always_inline int open_match(const volatile struct key_set *s, struct set_maps maps,
				      __u32 open, __u32 src, __u32 dst)
{
	/* The verifier forgets the value of a 32-bit number that the stack has held. */
	for (__u64 n = 0; n < MAX_SHAPES && open; n++) {
		__u32 list;

		checkpoint();
		list = length_find(s, maps, first_bit(open) % MAX_SHAPES, src, dst);
		if (list)
			return list;
		open &= open - 1;
	}
	return LIST_NONE;
}

/*
 * The number of the list with the longest prefix of one of the addresses, which are
 * in network order, or LIST_NONE.
 */
static __always_inline int prefix_match(const volatile struct key_set *s, struct set_maps maps,
					__u32 src, __u32 dst, int on_lean_path)
{
	__u32 list = 0, open;

	if (s->directory.shift) {
		open = open_lengths(&s->directory, maps.directory, src, dst);
		return open ? maps.open_match(open, src, dst) : LIST_NONE;
	}
	if (!on_lean_path && s->n_prefixes == 1) { /* a constant index, and so constant masks */
		list = length_find(s, maps, 0, src, dst);
		return list ? list : LIST_NONE;
	}
	if (on_lean_path && s->n_prefixes <= FEW_LENGTHS) {
#pragma unroll
		for (int i = 0; i < FEW_LENGTHS; i++)
			if (i < s->n_prefixes && !list)
				list = length_find(s, maps, i, src, dst);
		return list ? list : LIST_NONE;
	}
	if (on_lean_path) { /* takes a packet fewer instructions, and the verifier more */
		for (int i = 0; i < MAX_SHAPES && i < s->n_prefixes && !list; i++) {
			checkpoint();
			list = length_find(s, maps, i, src, dst);
		}
		return list ? list : LIST_NONE;
	}
	for (int i = 0; i < MAX_SHAPES && i < s->n_prefixes; i++) {
		checkpoint();
		list = length_find(s, maps, i, src, dst);
		if (list)
			return list;
	}
	return LIST_NONE;
}

/*
 * Sets p->list to the number of the first list that matches the packet, or to
 * LIST_NONE.
 */
static __always_inline void set_match(const volatile struct key_set *s, struct set_maps maps,
				      struct packet *p, const volatile struct secret *secret)
{
	p->list = LIST_NONE;
	if (is_empty(s))
		return;
	if (p->family == 4) {
		__u32 open;

		if (s->quotient.lines) {
			p->list = prefix_match(s, maps, p->src[0], p->dst[0], 0);
			barrier();
			if (p->list != LIST_NONE)
				return;
		}
		open = open_gates_v4(s, maps, p);
		if (!(s->gates_v4 & open))
			return;
		p->open = open;
		/*
		 * The loops need it in memory, not in registers: else the verifier
		 * walks them once for each way that leads here.
		 */
		barrier();
		if (!probe_shapes(s, maps, p, secret, KEY_V4, s->v4, &s->n_v4))
			probe_shapes(s, maps, p, secret, KEY_V4_FLOW, s->v4_flow, &s->n_v4_flow);
	} else if (p->family == 6) {
		__u32 open = open_gates_v6(s, maps, p, secret);

		if (!(s->gates_v6 & open))
			return;
		p->open = open;
		barrier();
		if (!probe_shapes(s, maps, p, secret, KEY_V6, s->v6, &s->n_v6))
			probe_shapes(s, maps, p, secret, KEY_V6_FLOW, s->v6_flow, &s->n_v6_flow);
	}
	barrier();
}

#endif
