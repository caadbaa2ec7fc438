/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* XXH64 of six fixed lengths, to compare with. Keys are little-endian words. */
#ifndef WEIR_XXH64_H
#define WEIR_XXH64_H

#include "hash.h"

#define XXH_P1 0x9E3779B185EBCA87ULL
#define XXH_P4 0x85EBCA77C2B2AE63ULL
#define XXH_P5 0x27D4EB2F165667C5ULL

static __always_inline __u64 xxh_round(__u64 acc, __u64 word)
{
	return rotl64(acc + word * XXH_P2, 31) * XXH_P1;
}

static __always_inline __u64 xxh_merge(__u64 h, __u64 acc)
{
	return (h ^ xxh_round(0, acc)) * XXH_P1 + XXH_P4;
}

static __always_inline __u64 xxh_word(__u64 h, __u64 word)
{
	return rotl64(h ^ xxh_round(0, word), 27) * XXH_P1 + XXH_P4;
}

static __always_inline __u64 xxh_half(__u64 h, __u32 half)
{
	return rotl64(h ^ half * XXH_P1, 23) * XXH_P2 + XXH_P3;
}

static __always_inline __u64 xxh64_8(__u64 seed, __u64 w)
{
	return xxh_avalanche(xxh_word(seed + XXH_P5 + 8, w));
}

static __always_inline __u64 xxh64_16(__u64 seed, __u64 w0, __u64 w1)
{
	return xxh_avalanche(xxh_word(xxh_word(seed + XXH_P5 + 16, w0), w1));
}

static __always_inline __u64 xxh64_20(__u64 seed, __u64 w0, __u64 w1, __u32 tail)
{
	return xxh_avalanche(xxh_half(xxh_word(xxh_word(seed + XXH_P5 + 20, w0), w1), tail));
}

static __always_inline __u64 xxh64_28(__u64 seed, __u64 w0, __u64 w1, __u64 w2, __u32 tail)
{
	__u64 h = xxh_word(xxh_word(xxh_word(seed + XXH_P5 + 28, w0), w1), w2);

	return xxh_avalanche(xxh_half(h, tail));
}

/* The part of XXH64 before the length is added, of four words: one stripe. */
static __always_inline __u64 xxh_stripe(__u64 seed, __u64 w0, __u64 w1, __u64 w2, __u64 w3)
{
	__u64 a = xxh_round(seed + XXH_P1 + XXH_P2, w0);
	__u64 b = xxh_round(seed + XXH_P2, w1);
	__u64 c = xxh_round(seed, w2);
	__u64 d = xxh_round(seed - XXH_P1, w3);
	__u64 h = rotl64(a, 1) + rotl64(b, 7) + rotl64(c, 12) + rotl64(d, 18);

	return xxh_merge(xxh_merge(xxh_merge(xxh_merge(h, a), b), c), d);
}

static __always_inline __u64 xxh64_40(__u64 seed, __u64 w0, __u64 w1, __u64 w2, __u64 w3, __u64 w4)
{
	return xxh_avalanche(xxh_word(xxh_stripe(seed, w0, w1, w2, w3) + 40, w4));
}

static __always_inline __u64 xxh64_60(__u64 seed, const __u64 *w)
{
	__u64 h = xxh_stripe(seed, w[0], w[1], w[2], w[3]) + 60;

	h = xxh_word(xxh_word(xxh_word(h, w[4]), w[5]), w[6]);
	return xxh_avalanche(xxh_half(h, w[7]));
}

#endif
