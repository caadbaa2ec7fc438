/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A hash whose collisions are bounded for any two keys that were chosen without its
 * secret. The twin of filter/hash's Secret, which states the bound and derives it.
 *
 * Keys arrive in registers, as little-endian words, the upper half of the last one 0
 * where the length is no multiple of 8: a key built in memory with 4-byte stores and
 * read back with 8-byte loads would stall store forwarding on every packet.
 */
#ifndef WEIR_UNIVERSAL_H
#define WEIR_UNIVERSAL_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "hash.h"

#define UNIVERSAL_MAX_LEN 60 /* bytes */

/* Uniform and independent numbers. */
struct secret {
	__u64 pairs[(UNIVERSAL_MAX_LEN + 7) / 8 + 1][2];
	__u64 offsets[UNIVERSAL_MAX_LEN / 4 + 1][2]; /* by the length in 32-bit words */
};

/* len, in bytes, is a constant in each use. */
static __always_inline __u64 universal(const volatile struct secret *s, const __u64 *words, int len)
{
	__u64 m1 = s->offsets[len / 4][0], m2 = s->offsets[len / 4][1];
	__u64 a = s->pairs[0][0], c = s->pairs[0][1];

#pragma unroll
	for (int i = 0; i < (len + 7) / 8; i++) {
		__u64 x = (__u32)words[i], y = words[i] >> 32;

		m1 += (a + x) * (c + y);
		a = s->pairs[i + 1][0];
		c = s->pairs[i + 1][1];
		m2 += (a + x) * (c + y);
	}
	return xxh_avalanche(m1 ^ m2 >> 32);
}

#endif
