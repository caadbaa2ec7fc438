/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Eight 64-bit hashes in a cache line, the index of a bucket. */
#ifndef WEIR_SLOTS_H
#define WEIR_SLOTS_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define SLOTS 8

struct slots {
	__u64 hashes[SLOTS]; /* 0: empty */
};

/*
 * Returns SLOTS plus the slot with the hash, or 0. Without branches, for the reason
 * that bucket_find() gives.
 */
static __always_inline __u32 slots_find(const struct slots *s, __u64 h)
{
	__u32 found = 0;

#pragma unroll
	for (int i = 0; i < SLOTS; i++) {
		__u64 other = s->hashes[i] ^ h, negated = -other;

		/* Keeps the compiler from seeing, and branching on, a comparison. */
		asm volatile("" : "+r"(negated));
		other = (other | negated) >> 63; /* 0 where they are equal, else 1 */
		/*
		 * A product, not a mask: recent verifiers fork at `mask & constant`,
		 * for a mask of all zeros and one of all ones.
		 */
		asm volatile("" : "+r"(other));
		found += (1 - other) * (SLOTS + i);
	}
	return found;
}

#endif
