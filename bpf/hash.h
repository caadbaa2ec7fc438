/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The mixer of the hash in universal.h, and values derived from a hash's 64 bits. The
 * twin of package filter/hash.
 */
#ifndef WEIR_HASH_H
#define WEIR_HASH_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* From the specification of XXH64. */
#define XXH_P2 0xC2B2AE3D27D4EB4FULL
#define XXH_P3 0x165667B19E3779F9ULL

static __always_inline __u64 rotl64(__u64 x, int r)
{
	return x << r | x >> (64 - r);
}

/* The last steps of XXH64: a bijection. */
static __always_inline __u64 xxh_avalanche(__u64 h)
{
	h = (h ^ h >> 33) * XXH_P2;
	h = (h ^ h >> 29) * XXH_P3;
	return h ^ h >> 32;
}

/* The i-th of a sequence of independent hashes derived from h: SplitMix64. */
static __always_inline __u64 hash_nth(__u64 h, __u64 i)
{
	__u64 z = h + i * 0x9E3779B97F4A7C15ULL;

	z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ULL;
	z = (z ^ z >> 27) * 0x94D049BB133111EBULL;
	return z ^ z >> 31;
}

/* Maps the upper half of h evenly onto 0 … n-1; the lower half stays free. */
static __always_inline __u32 hash_reduce(__u64 h, __u32 n)
{
	return (h >> 32) * n >> 32;
}

#endif
