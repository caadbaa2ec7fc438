/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * SipHash-2-4 (Aumasson and Bernstein, 2012), a message authentication code: unlike the
 * hash in universal.h, seeing hashes does not help to forge one. The twin of
 * filter/icarus's.
 */
#ifndef WEIR_SIPHASH_H
#define WEIR_SIPHASH_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "hash.h"

struct sip_state {
	__u64 v[4];
};

static __always_inline void sip_round(struct sip_state *s)
{
	s->v[0] += s->v[1];
	s->v[1] = rotl64(s->v[1], 13) ^ s->v[0];
	s->v[0] = rotl64(s->v[0], 32);
	s->v[2] += s->v[3];
	s->v[3] = rotl64(s->v[3], 16) ^ s->v[2];
	s->v[0] += s->v[3];
	s->v[3] = rotl64(s->v[3], 21) ^ s->v[0];
	s->v[2] += s->v[1];
	s->v[1] = rotl64(s->v[1], 17) ^ s->v[2];
	s->v[2] = rotl64(s->v[2], 32);
}

/* Of n little-endian words, the last of which ends with the message's length. */
static __always_inline __u64 siphash(const volatile __u64 *key, const __u64 *words, int n)
{
	/* "somepseudorandomlygeneratedbytes" */
	struct sip_state s = {{key[0] ^ 0x736f6d6570736575ULL, key[1] ^ 0x646f72616e646f6dULL,
			       key[0] ^ 0x6c7967656e657261ULL, key[1] ^ 0x7465646279746573ULL}};

	for (int i = 0; i < n; i++) {
		s.v[3] ^= words[i];
		sip_round(&s);
		sip_round(&s);
		s.v[0] ^= words[i];
	}
	s.v[2] ^= 0xff;
	for (int i = 0; i < 4; i++)
		sip_round(&s);
	return s.v[0] ^ s.v[1] ^ s.v[2] ^ s.v[3];
}

#endif
