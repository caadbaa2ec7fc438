/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The fingerprint table, which confirms keys that pass the cascade and names their
 * list. A bucket is one cache line of eight slots; a key is in one of two buckets,
 * mostly in the first. The twin of filter/cuckoo's Table.
 *
 *	slot bits 63 … 48   list number, 1 …; an empty slot is 0
 *	slot bits 47 …  0   fingerprint: the lower 48 bits of the key's hash
 *
 * The first bucket comes from the upper 32 bits of the hash, the second from
 * the first and the fingerprint. Fingerprint and bucket together distinguish nearly
 * as many keys as the whole hash: an unlisted key is confirmed by chance with
 * probability 1e-12 among 10M entries (filter/fpr's Fingerprint).
 *
 * The control plane moves a key only from its first bucket to its second, and
 * writes the copy before it clears the original. Reading the first, then the second,
 * therefore finds a listed key at every instant.
 */
#ifndef WEIR_TABLE_H
#define WEIR_TABLE_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "hash.h"

#define BUCKET_SLOTS	 8
#define FINGERPRINT_MASK ((1ULL << 48) - 1)
#define LIST_SHIFT	 48

struct bucket {
	__u64 slots[BUCKET_SLOTS];
};

_Static_assert(sizeof(struct bucket) == 64, "a bucket is one cache line");

/*
 * The slot with the fingerprint, or 0. Without branches: a mispredicted branch on a
 * value from memory would serialise the cache misses of successive packets.
 */
static __always_inline __u64 bucket_find(const volatile struct bucket *b, __u64 fingerprint)
{
	__u64 found = 0;

#pragma unroll
	for (int i = 0; i < BUCKET_SLOTS; i++) {
		__u64 slot = b->slots[i];
		/* Below 2^48, so that only 0 - 1 has the sign bit. */
		__s64 other = (slot ^ fingerprint) & FINGERPRINT_MASK;

		other -= 1;
		/* Keeps the compiler from seeing, and branching on, a comparison. */
		asm volatile("" : "+r"(other));
		found |= slot & (other >> 63);
	}
	return found;
}

static __always_inline __u32 second_bucket(__u32 first, __u64 fingerprint, __u32 buckets)
{
	__s32 i = hash_reduce(hash_nth(fingerprint, 0), buckets) - first;

	return i + (i >> 31 & buckets);
}

/* The number of the list that contains the key, or 0. */
static __always_inline __u32 table_find(void *map, __u32 buckets, __u64 h)
{
	__u64 fingerprint = h & FINGERPRINT_MASK;
	__u32 i = hash_reduce(h, buckets);
	struct bucket *b = bpf_map_lookup_elem(map, &i);
	__u64 slot;

	if (!b) /* impossible: the map has `buckets` entries */
		return 0;
	slot = bucket_find(b, fingerprint);
	if (slot)
		return slot >> LIST_SHIFT;
	/*
	 * Load it after the first, also on a CPU that reorders loads: a dependency of the
	 * address. slot is 0, which the CPU does not know in advance.
	 */
	asm volatile("" : "+r"(slot));
	i = second_bucket(i, fingerprint, buckets) + (__u32)slot;
	b = bpf_map_lookup_elem(map, &i);
	return b ? bucket_find(b, fingerprint) >> LIST_SHIFT : 0;
}

#endif
