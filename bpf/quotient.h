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
	__u64 scale;	   /* number of words << (QUOTIENT_KEY_BITS - bits of a key) */
	__u64 front_scale; /* the same of words of the front */
	__u64 rem_mask;	   /* the bits of a remainder */
	__u64 rems;	   /* the bits of each lane below its list number */
	__u64 seconds;	   /* the uppermost of these: the entry is in its second word */
	__u32 list_bit;	   /* the lowest one of a list number */
	__u32 lane_bits;   /* 63, 31, 21, 15 or 12 */
	__u32 lines;
	__u32 buckets; /* of the spill */
	__u32 front;   /* words of the front; 0: none */
	__u32 pad;
};

struct quotient_maps {
	struct array lines;
	struct array spill;
	struct array front;
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
	__u64 p;

	if (q->key_mask == 0xffffffff) { /* of addresses alone: no product needs a mask */
		__u32 half = ((__u32)key ^ (__u32)q->salt) * (__u32)q->mul[0];

		half = (half ^ half >> 16) * (__u32)q->mul[1];
		return (half ^ half >> 15) * (__u32)q->mul[2];
	}
	p = (key ^ q->salt) * q->mul[0] & q->key_mask;

	p = (p ^ p >> 16) * q->mul[1] & q->key_mask;
	return (p ^ p >> 15) * q->mul[2] & q->key_mask;
}

/*
 * The lanes of w whose bits below the list number are repeated in want, all others 0. Without
 * branches: a mispredicted one on a value from memory would serialise the cache misses of
 * successive packets. An empty lane matches remainder 0 of a first word, and is 0 itself. bits
 * and lanes are constants in each use.
 */
static __always_inline __u64 lanes_equal(const volatile struct quotient *q, __u64 w, __u64 want,
					 __u64 ones, int bits)
{
	/* No carry leaves a lane: these bits are fewer than the lane's. */
	__u64 differ = ((w ^ want) & q->rems) + ones * ((1ULL << (bits - 1)) - 1);
	__u64 equal = ~differ & ones << (bits - 1);

	return w & ((equal << 1) - (equal >> (bits - 1)));
}

/*
 * The list in either word. Not of their OR: an entry may move and change its list
 * between the two loads.
 */
static __always_inline __u32 words_find(const volatile struct quotient *q, __u64 w1, __u64 w2,
					__u64 rem, int bits, int lanes)
{
	__u64 ones = 0, want, w;
	__s64 none;

#pragma unroll
	for (int i = 0; i < lanes; i++)
		ones |= 1ULL << i * bits;
	want = rem * ones;
	w = lanes_equal(q, w1, want, ones, bits);
	none = w; /* without the upper bit, which is not a part of a lane */
	none -= 1;
	/* Keeps the compiler from seeing, and branching on, a comparison. */
	asm volatile("" : "+r"(none));
	w |= lanes_equal(q, w2, want + q->seconds, ones, bits) & none >> 63;
	/* At most one lane is left. */
	if (lanes > 1)
		w |= w >> bits;
	if (lanes > 2)
		w |= w >> 2 * bits;
	if (lanes > 4)
		w |= w >> 4 * bits;
	return (w & ((1ULL << bits) - 1)) >> q->list_bit;
}

/* The word at an offset of a line, whose other bits are ignored. */
static __always_inline __u64 load_word(const struct line *l, __u64 at)
{
	/* The compiler must not know the bounds, or it drops the mask that Linux 5.10 needs. */
	asm volatile("" : "+r"(at));
	return *(const volatile __u64 *)((const void *)l + (at & (sizeof(*l) - sizeof(__u64))));
}

static __always_inline __u32 spill_find(const volatile struct quotient *q, struct array spill,
					__u32 word, __u64 p)
{
	__u32 first = (__u64)(word * 0x9E3779B1) * q->buckets >> 32, second;
	struct bucket *b = entry_at(spill, first, sizeof(*b));
	__u64 slot;

	if (!b) /* impossible: the map has `buckets` entries */
		return 0;
	slot = bucket_find(b, p);
	if (slot)
		return slot >> LIST_SHIFT;
	second = first + 1 + ((__u64)(word * 0x85EBCA6B) * (q->buckets - 1) >> 32);
	if (second >= q->buckets)
		second -= q->buckets;
	b = entry_at(spill, second, sizeof(*b));
	return b ? bucket_find(b, p) >> LIST_SHIFT : 0;
}

/* Whether an image passes the front, which fits a nearer cache than the lines. */
static __always_inline int front_test(const volatile struct quotient *q, struct array front,
				      __u64 p)
{
	__u32 n = p * q->front_scale >> QUOTIENT_KEY_BITS, t = (__u32)p * 0x85EBCA6B;
	__u64 *word = entry_at(front, n, sizeof(*word));

	return word && *word >> (t >> 26) & *word >> (t >> 20 & 63) & *word >> (t >> 14 & 63) & 1;
}

/* The number of the list that contains the key, or 0. */
static __always_inline __u32 quotient_find(const volatile struct quotient *q,
					   struct quotient_maps maps, __u64 key)
{
	__u64 p = quotient_permute(q, key), rem = p & q->rem_mask, w1, w2;
	__u64 first = p * q->scale >> QUOTIENT_KEY_BITS; /* of all words */
	/* The offset of the second word, from the first, by the remainder alone. */
	__u32 to = ((__u32)rem * 0x9E3779B1 >> 23 & 0x38) | 8;
	struct line *l;
	__u32 list;

	if (q->front && !front_test(q, maps.front, p))
		return 0;
	l = entry_at(maps.lines, first / LINE_WORDS, sizeof(*l));
	if (!l) /* impossible: the map has `lines` entries */
		return 0;
	/* In this order: an entry moves from its first word to its second, never back. */
	w1 = load_word(l, first * sizeof(__u64));
	if (reorders_loads)
		to += after(w1);
	w2 = load_word(l, first * sizeof(__u64) ^ to);
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
	return spill_find(q, maps.spill, first + after(w1), p);
}

#endif
