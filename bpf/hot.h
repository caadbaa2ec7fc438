/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Weights: elements of hot traffic have k_e bits in the cascade, more than the k of
 * all others (Bruck, Gao and Jiang, "Weighted Bloom filter"). The hot table has
 * k_e - k of each hot element; it is looked up only when all k bits of a key are
 * set, so clean traffic does not pay for it. The twin of filter/membership's Hot.
 *
 *	slot bits 63 … 59   k_e - k, 1 …; an empty slot is 0
 *	slot bits 58 …  0   the upper bits of the key's hash
 *
 * The lower bits choose a bucket, out of a power of two, at least 32: bucket and
 * slot together are the whole hash. The upper ones choose the line: those whose keys
 * pass most often would have their buckets full.
 */
#ifndef WEIR_HOT_H
#define WEIR_HOT_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "cascade.h"
#include "hash.h"
#include "table.h"

#define HOT_SHIFT 59
#define HOT_MASK  ((1ULL << HOT_SHIFT) - 1)
#define HOT_LOWER (64 - HOT_SHIFT) /* bits of a hash that a slot does not have */
#define HOT_LINES 5 /* that the bits behind those of the first line may span: 24 in all */

/*
 * k_e - k of the key with hash h. Without branches, for the reason that bucket_find()
 * gives.
 */
static __always_inline __u32 hot_find(void *map, __u32 buckets, __u64 h)
{
	__u32 i = h & (buckets - 1);
	struct bucket *b = bpf_map_lookup_elem(map, &i);
	__u64 found = 0;

	if (!b) /* impossible: the map has `buckets` entries */
		return 0;
#pragma unroll
	for (int j = 0; j < BUCKET_SLOTS; j++) {
		__u64 slot = *(volatile __u64 *)&b->slots[j];
		/* Below 2^59, so that only 0 - 1 has the sign bit. */
		__s64 other = (slot ^ h >> HOT_LOWER) & HOT_MASK;

		other -= 1;
		/* Keeps the compiler from seeing, and branching on, a comparison. */
		asm volatile("" : "+r"(other));
		found |= slot & (other >> 63);
	}
	return found >> HOT_SHIFT;
}

/*
 * Tests the bits behind the first `rest` of those that follow the first line:
 * six in each further line.
 */
static __always_inline int hot_test(void *map, __u32 lines, __u32 rest, __u32 extra, __u64 h)
{
	__u32 from = rest, to = rest + extra, zero;

	/*
	 * Load these after the slot, also on a CPU that reorders loads: a dependency of
	 * the address. The addend is 0, which the CPU does not know in advance.
	 */
	asm volatile("" : "+r"(extra));
	zero = extra >> 5;
	for (int i = 1; i <= HOT_LINES; i++) {
		__u64 g = hash_nth(h, i);
		__u32 at = hash_reduce(g, lines) + zero, start = g >> 36;
		struct line *l = bpf_map_lookup_elem(map, &at);
		__u64 all = ~0ULL;

		if (!l)
			return 1;
#pragma unroll
		for (int j = 0; j < LINE_BITS_MAX; j++)
			if (j >= from && j < to)
				all &= l->words[(start + j) % LINE_WORDS] >> (g >> 6 * j & 63);
		if (!(all & 1))
			return 0;
		if (to <= LINE_BITS_MAX)
			return 1;
		from = 0;
		to -= LINE_BITS_MAX;
	}
	return 1;
}

#endif
