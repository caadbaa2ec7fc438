/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * An exact set of integers of 32 to 34 bits with list numbers: quotienting, by a
 * keyed bijection instead of a hash. Most lookups read one cache line. The twin of
 * package filter/quotient, which documents the layout, and in which order the
 * control plane writes beside these readers.
 */
#ifndef WEIR_QUOTIENT_H
#define WEIR_QUOTIENT_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "cascade.h"
#include "table.h"

/* Geometry and secret of a set, constants of the program. Without lines it is empty. */
struct quotient {
	__u64 salt; /* combined by XOR */
	__u64 mul[3];
	__u64 key_mask;	   /* the bits of a key */
	__u64 scale;	   /* number of lines << (QUOTIENT_KEY_BITS - bits of a key) */
	__u64 front_scale; /* the same of words of the front */
	__u64 rem_mask;	   /* the bits of a remainder */
	__u64 rems;	   /* the remainder of each lane */
	__u32 rem_bits;
	__u32 lane_bits; /* 63, 31, 21, 15 or 12 */
	__u32 lines;
	__u32 buckets; /* of the spill */
	__u32 front;   /* words of the front; 0: none */
	__u32 pad;
};

struct quotient_maps {
	void *lines;
	void *spill;
	void *front;
};

#define QUOTIENT_KEY_BITS 34 /* of the longest keys: the shift by them is constant */

/* The CPU loads in another order than the program, unless an address depends on a load. */
volatile const __u8 reorders_loads = 1;

/*
 * A number that is 0, which the CPU learns only when it has loaded w. Added to an
 * address, it makes that load the later one.
 */
static __always_inline __u32 after(__u64 w)
{
	__u32 top = w >> 63;

	asm volatile("" : "+r"(top));
	return top >> 1;
}

static __always_inline __u64 quotient_permute(const volatile struct quotient *q, __u64 key)
{
	__u64 p = (key ^ q->salt) * q->mul[0] & q->key_mask;

	p = (p ^ p >> 16) * q->mul[1] & q->key_mask;
	return (p ^ p >> 15) * q->mul[2] & q->key_mask;
}

/*
 * The list in the lane of w whose remainder is repeated in want, or 0. Without
 * branches: a mispredicted one on a value from memory would serialise the cache
 * misses of successive packets. An empty lane matches remainder 0 with list 0, so
 * that lanes are joined by OR. bits and lanes are constants in each use.
 */
static __always_inline __u64 lanes_find(const volatile struct quotient *q, __u64 w, __u64 want,
					int bits, int lanes)
{
	__u64 ones = 0, differ, equal;

#pragma unroll
	for (int i = 0; i < lanes; i++)
		ones |= 1ULL << i * bits;
	/* No carry leaves a lane: a remainder is shorter than the lane. */
	differ = ((w ^ want) & q->rems) + ones * ((1ULL << (bits - 1)) - 1);
	equal = ~differ & ones << (bits - 1);
	w &= (equal << 1) - (equal >> (bits - 1)); /* the lanes that match */
	if (lanes > 1)
		w |= w >> bits;
	if (lanes > 2)
		w |= w >> 2 * bits;
	if (lanes > 4)
		w |= w >> 4 * bits;
	return (w & ((1ULL << bits) - 1)) >> q->rem_bits;
}

/*
 * The list in either word. Not of their OR: an entry may move and change its list
 * between the two loads.
 */
static __always_inline __u32 words_find(const volatile struct quotient *q, __u64 w1, __u64 w2,
					__u64 rem, int bits, int lanes)
{
	__u64 ones = 0, list;
	__s64 none;

#pragma unroll
	for (int i = 0; i < lanes; i++)
		ones |= 1ULL << i * bits;
	list = lanes_find(q, w1, rem * ones, bits, lanes);
	none = list;
	none -= 1;
	/* Keeps the compiler from seeing, and branching on, a comparison. */
	asm volatile("" : "+r"(none));
	return list | (lanes_find(q, w2, rem * ones, bits, lanes) & none >> 63);
}

static __always_inline __u64 load_word(const struct line *l, __u32 word)
{
	__u64 at = word * sizeof(__u64);

	/* The compiler must not know the bounds, or it drops the mask that Linux 5.10 needs. */
	asm volatile("" : "+r"(at));
	return *(const volatile __u64 *)((const void *)l + (at & (sizeof(*l) - sizeof(__u64))));
}

static __always_inline __u32 spill_find(const volatile struct quotient *q, void *spill, __u32 word,
					__u64 p)
{
	__u32 first = (__u64)(word * 0x9E3779B1) * q->buckets >> 32, second;
	struct bucket *b = bpf_map_lookup_elem(spill, &first);
	__u64 slot;

	if (!b) /* impossible: the map has `buckets` entries */
		return 0;
	slot = bucket_find(b, p);
	if (slot)
		return slot >> LIST_SHIFT;
	second = first + 1 + ((__u64)(word * 0x85EBCA6B) * (q->buckets - 1) >> 32);
	if (second >= q->buckets)
		second -= q->buckets;
	b = bpf_map_lookup_elem(spill, &second);
	return b ? bucket_find(b, p) >> LIST_SHIFT : 0;
}

/* Whether an image passes the front, which fits a nearer cache than the lines. */
static __always_inline int front_test(const volatile struct quotient *q, void *front, __u64 p)
{
	__u32 n = p * q->front_scale >> QUOTIENT_KEY_BITS, t = (__u32)p * 0x85EBCA6B;
	__u64 *word = bpf_map_lookup_elem(front, &n);

	return word && *word >> (t >> 26) & *word >> (t >> 20 & 63) & *word >> (t >> 14 & 63) & 1;
}

/* The number of the list that contains the key, or 0. */
static __always_inline __u32 quotient_find(const volatile struct quotient *q,
					   struct quotient_maps maps, __u64 key)
{
	__u64 p = quotient_permute(q, key), rem = p & q->rem_mask, w1, w2;
	__u32 n = p * q->scale >> QUOTIENT_KEY_BITS;
	__u32 s = (__u32)p * 0x9E3779B1, first = s >> 29, second = first ^ ((s >> 26 & 7) | 1);
	struct line *l;
	__u32 list;

	if (q->front && !front_test(q, maps.front, p))
		return 0;
	l = bpf_map_lookup_elem(maps.lines, &n);
	if (!l) /* impossible: the map has `lines` entries */
		return 0;
	/* In this order: an entry moves from its first word to its second, never back. */
	w1 = load_word(l, first);
	if (reorders_loads)
		second += after(w1);
	w2 = load_word(l, second);
	switch (q->lane_bits) {
	case 12:
		list = words_find(q, w1, w2, rem, 12, 5);
		break;
	case 15:
		list = words_find(q, w1, w2, rem, 15, 4);
		break;
	case 21:
		list = words_find(q, w1, w2, rem, 21, 3);
		break;
	case 31:
		list = words_find(q, w1, w2, rem, 31, 2);
		break;
	default:
		list = words_find(q, w1, w2, rem, 63, 1);
	}
	if (list || !(w1 >> 63))
		return list;
	return spill_find(q, maps.spill, n * LINE_WORDS + first + after(w1), p);
}

#endif
