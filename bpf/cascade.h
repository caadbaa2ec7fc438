/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The cascade: a blocked Bloom filter (Putze, Sanders and Singler, 2007) whose
 * blocks, lines, have 64 bytes. A key's first bits are in distinct words of one line
 * and are tested without a branch; the rest are in up to three further, independent
 * lines, each of which is read only when the last passes: for 97 % of unlisted keys the
 * second never is.
 * The twin of filter/cascade's Filter; its false-positive rate is filter/fpr's
 * Cascade.
 *
 * Independent bit fields of one hash place a key in a line:
 *
 *	bits 63 … 32   the line (the upper 25 or so matter)
 *	bits 38 … 36   the word of the first bit; the next bit is in the next word
 *	bits 35 …  0   six bit positions of six bits
 *
 * Behind the first line, bits 28 … 24 may be a number instead: see classes.h.
 *
 * Double hashing inside a line would raise the false-positive rate by 30 %.
 */
#ifndef WEIR_CASCADE_H
#define WEIR_CASCADE_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "hash.h"

#define LINE_WORDS    8
#define LINE_BITS_MAX 6 /* bits of one key in one line */
#define REST_LINES    3 /* of the bits that follow those of the first line */

struct line {
	__u64 words[LINE_WORDS];
};

_Static_assert(sizeof(struct line) == 64, "a line is one cache line");

/*
 * bits is a constant of the program when the verifier checks it, which removes the
 * tests beyond it.
 */
static __always_inline int line_test(const struct line *l, __u64 h, __u32 bits)
{
	__u32 start = h >> 36;
	__u64 all = ~0ULL;

#pragma unroll
	for (int j = 0; j < LINE_BITS_MAX; j++)
		if (j < bits)
			all &= l->words[(start + j) % LINE_WORDS] >> (h >> 6 * j & 63);
	return all & 1;
}

/* Sets the bits that line_test() tests. Returns whether all were set before. */
static __always_inline int line_set(struct line *l, __u64 h, __u32 bits)
{
	__u32 start = h >> 36;
	__u64 missing = 0;

#pragma unroll
	for (int j = 0; j < LINE_BITS_MAX; j++)
		if (j < bits) {
			__u64 *word = &l->words[(start + j) % LINE_WORDS], before = *word;
			__u64 bit = 1ULL << (h >> 6 * j & 63);

			missing |= bit & ~before;
			*word = before | bit;
		}
	return !missing;
}

/* The line that a hash chooses. Never null, since the map has `lines` entries. */
static __always_inline struct line *line_at(void *map, __u32 lines, __u64 h)
{
	__u32 i = hash_reduce(h, lines);

	return bpf_map_lookup_elem(map, &i);
}

/*
 * Tests the further lines of a key whose first has passed, six bits in each and what is
 * left in the last; rest is a constant like bits, and 0 where there are none.
 */
static __always_inline int rest_test(void *map, __u32 lines, __u32 rest, __u64 h)
{
#pragma unroll
	for (int i = 1; i <= REST_LINES; i++) {
		__u32 bits = rest < LINE_BITS_MAX ? rest : LINE_BITS_MAX;
		__u64 g = hash_nth(h, i);
		struct line *l;

		if (!bits)
			return 1;
		l = line_at(map, lines, g);
		if (!l || !line_test(l, g, bits))
			return 0;
		rest -= bits;
	}
	return 1;
}

#endif
