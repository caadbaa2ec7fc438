/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Digests: each packet that passes is recorded in the Bloom filter of the current
 * slice of time, by a keyed hash of the fields that do not change on its way
 * (Snoeren et al., "Hash-based IP traceback", SIGCOMM 2001). The twin of
 * filter/digest, which documents the error rates.
 *
 * Each CPU has two banks: the control plane reads and clears one while packets are
 * recorded in the other. A bank has a filter in lines, like the first lines of the
 * cascade: a packet misses the cache once. Packets are gathered and recorded several
 * at a time, so that their misses overlap. The control plane records those still
 * gathered when a slice ends.
 *
 * A digest that is there already is a packet seen again, or a false positive. Only
 * these are watched for a TTL that falls from one time to the next, the mark of a
 * forwarding loop.
 */
#ifndef WEIR_DIGEST_H
#define WEIR_DIGEST_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "cascade.h"
#include "context.h"
#include "hash.h"
#include "invariant.h"
#include "packet.h"
#include "stats.h"
#include "tracker.h"
#include "universal.h"

/* The bit of cpu_row's banks that is the active bank of digests, behind those of trackers. */
#define DIGEST_BANK MAX_TRACKERS

/* Constants of the program. */
struct digests {
	struct secret secret; /* of the digests' hash */
	__u32 lines;	      /* of the filter in a bank; 0: nothing is recorded */
	__u32 bits;	      /* that a packet sets in its line */
};

volatile const struct digests digest_config = {};

#define SIGHTINGS  1024 /* packets seen again that are watched, on each CPU */
#define LOOP_FALLS 2	/* One router on the way makes the TTL fall once. */

/* A packet that was seen. */
struct sighting {
	__u64 digest;
	__u32 src[4];
	__u32 dst[4];
	__u32 slice; /* in which it was seen */
	__u8 family;
	__u8 proto;
	__u8 ttl;
	/* Of packets that are watched, since they were seen the second time: */
	__u8 first; /* TTL */
	__u8 falls; /* of the TTL since then; from LOOP_FALLS on, a loop is suspected */
	__u8 pad[15];
};

_Static_assert(sizeof(struct sighting) == 64, "a sighting is one cache line");

#define GATHERED 16

struct digest_bank {
	__u64 packets; /* recorded in the filter */
	__u64 skipped; /* truncated or malformed, without digest */
	__u64 loops;   /* packets suspected of a forwarding loop */
	__u32 slice;   /* a number set by the control plane */
	__u32 count;   /* of gathered packets */
	__u64 pad[4];
	struct sighting gathered[GATHERED];
};

/* The control plane's record of the user of this memory. */
struct digest_state {
	__u8 seed[32];	/* of the secret */
	__u64 identity; /* of the digests that are recorded here */
};

KEPT_ARRAY(digest_now, struct digest_state);
/* Two banks for each possible CPU, and their filters in the same order. */
KEPT_ADDRESSED_ARRAY(digest_banks, struct digest_bank);
KEPT_ADDRESSED_ARRAY(digest_lines, struct line);
/* SIGHTINGS for each possible CPU. */
KEPT_ARRAY(digest_sightings, struct sighting);

/*
 * Watches a packet that was seen before, replacing another if need be: a loop shows
 * the same packet again and again. Returns whether it has just become a suspect.
 */
static __always_inline int watch_again(const struct sighting *seen)
{
	__u32 i = bpf_get_smp_processor_id() * SIGHTINGS + seen->digest % SIGHTINGS;
	struct sighting *s = bpf_map_lookup_elem(&digest_sightings, &i);
	__u8 ttl = seen->ttl;

	if (!s) /* impossible */
		return 0;
	if (s->digest != seen->digest || s->slice != seen->slice || ttl > s->ttl) {
		*s = *seen;
		s->first = ttl;
		s->falls = 0;
		return 0;
	}
	if (ttl == s->ttl)
		return 0;
	s->ttl = ttl;
	s->falls += s->falls <= LOOP_FALLS;
	return s->falls == LOOP_FALLS;
}

/*
 * Records the packets that a bank has gathered, once in GATHERED packets. A global
 * function, like those in lists.h.
 */
__noinline int record_gathered(__u32 bank)
{
	struct digest_bank *b = AT(digest_banks, bank);
	__u32 first = bank * digest_config.lines;
	__u64 loaded = 0;

	if (!b) /* impossible */
		return 0;
	/* All misses at once; each write would wait for its own. */
	for (int i = 0; i < GATHERED; i++) {
		__u32 at = first + hash_reduce(b->gathered[i].digest, digest_config.lines);
		struct line *l = AT(digest_lines, at);

		if (l)
			loaded |= l->words[0];
	}
	asm volatile("" : : "r"(loaded));
	for (int i = 0; i < GATHERED; i++) {
		__u64 h = b->gathered[i].digest;
		__u32 at = first + hash_reduce(h, digest_config.lines);
		struct line *l = AT(digest_lines, at);

		if (l && line_set(l, h, digest_config.bits))
			b->loops += watch_again(&b->gathered[i]);
	}
	b->packets += GATHERED;
	/* The filter has them from now on. Readers read the gathered ones first. */
	barrier();
	b->count = 0;
	return 0;
}

/* Gathers a packet that passes. Its frame may have changed since it was parsed. */
static __always_inline void record_digest(struct context *ctx, const struct cpu_row *row,
					  const struct packet *p)
{
	__u32 bank = 2 * bpf_get_smp_processor_id() + (row->banks >> DIGEST_BANK & 1), n;
	struct digest_bank *b = AT(digest_banks, bank);
	struct cursor c = {(void *)(long)ctx->data + p->network, (void *)(long)ctx->data_end};
	struct invariant inv;
	struct sighting *s;
	__u8 *ip = c.pos;

	if (!b) /* impossible */
		return;
	n = b->count;
	s = &b->gathered[n % GATHERED];
	if ((void *)(ip + 9) > c.end) {
		b->skipped += 1;
		return;
	}
	if (*ip >> 4 == 4 && invariant_v4(&c, &inv)) {
		s->ttl = ip[8];
		s->digest = universal(&digest_config.secret, inv.w, INVARIANT_V4);
		s->src[0] = p->src[0];
		s->dst[0] = p->dst[0];
	} else if (*ip >> 4 == 6 && invariant_v6(&c, &inv)) {
		s->ttl = ip[7];
		s->digest = universal(&digest_config.secret, inv.w, INVARIANT_V6);
		/* Word by word, as they were stored: wider loads would stall. */
#pragma unroll
		for (int i = 0; i < 4; i++) {
			s->src[i] = *(const volatile __u32 *)&p->src[i];
			s->dst[i] = *(const volatile __u32 *)&p->dst[i];
		}
	} else {
		b->skipped += 1;
		return;
	}
	s->family = p->family;
	s->proto = p->proto;
	s->slice = b->slice;
	barrier();
	b->count = n + 1;
	if (n + 1 >= GATHERED)
		record_gathered(bank);
}

#endif
