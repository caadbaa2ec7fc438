/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Digests: each packet that passes is remembered in the Bloom filter of the
 * current slice of time, by a keyed hash of what does not change on its way
 * (Snoeren et al., "Hash-based IP traceback", SIGCOMM 2001). The twin of
 * filter/digest, which says how good the answers are.
 *
 * Each CPU has two banks, of which the control plane reads and clears one while
 * packets are recorded in the other. A bank has a filter in lines, as the
 * cascade's first ones: a packet misses the cache once. Since nobody waits for
 * it, packets are gathered and recorded some at a time, so that their misses
 * overlap. What is still gathered when a slice ends, the control plane records.
 *
 * A digest that is there already is a packet seen again, or chance. Only such
 * are watched for a TTL that falls from one time to the next, which is how a
 * packet looks that runs in a circle.
 */
#ifndef WEIR_DIGEST_H
#define WEIR_DIGEST_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "cascade.h"
#include "hash.h"
#include "invariant.h"
#include "packet.h"
#include "stats.h"
#include "tracker.h"

/* Which bit of cpu_row's banks says where digests are recorded: behind the trackers'. */
#define DIGEST_BANK MAX_TRACKERS

/* Constants of the program. */
struct digests {
	__u64 seed;  /* of the digests, secret */
	__u32 lines; /* of the filter in a bank; 0: nothing is recorded */
	__u32 bits;  /* that a packet sets in its line */
};

volatile const struct digests digest_config = {};

#define SIGHTINGS  1024 /* of packets that were seen again, on each CPU */
#define LOOP_FALLS 2	/* A router on the way makes the TTL fall once. */

/* A packet that was seen. */
struct sighting {
	__u64 digest;
	__u32 src[4];
	__u32 dst[4];
	__u32 slice; /* in which it was seen */
	__u8 family;
	__u8 proto;
	__u8 ttl;
	/* Where packets are watched, from the second time on that they were seen: */
	__u8 first; /* TTL */
	__u8 falls; /* of the TTL since then; LOOP_FALLS and more: a loop is suspected */
	__u8 pad[15];
};

_Static_assert(sizeof(struct sighting) == 64, "a sighting is one cache line");

#define GATHERED 16

struct digest_bank {
	__u64 packets; /* recorded in the filter */
	__u64 skipped; /* cut off, or malformed: they have no digest */
	__u64 loops;   /* packets that are suspected to run in a circle */
	__u32 slice;   /* a number that the control plane gives */
	__u32 count;   /* of packets that are gathered */
	__u64 pad[4];
	struct sighting gathered[GATHERED];
};

/* The control plane's own: whose memory this is. */
struct digest_state {
	__u64 seed;
	__u64 identity; /* of what is recorded here */
};

ARRAY(digest_now, struct digest_state);
/* For each possible CPU two banks, and in the same order their filters. */
ARRAY(digest_banks, struct digest_bank);
ARRAY(digest_lines, struct line);
/* For each possible CPU SIGHTINGS. */
ARRAY(digest_sightings, struct sighting);

/*
 * Watches a packet that was seen before. Each takes the place of another one,
 * if need be, since a loop shows the same one again and again. Returns whether it
 * is suspected of a loop now, but was not before.
 */
static __always_inline int watch_again(const struct sighting *seen)
{
	__u32 i = bpf_get_smp_processor_id() * SIGHTINGS + seen->digest % SIGHTINGS;
	struct sighting *s = bpf_map_lookup_elem(&digest_sightings, &i);
	__u8 ttl = seen->ttl;

	if (!s) /* cannot be */
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
 * Records what a bank has gathered. A global function, like those of the
 * pipeline, of which it is one run in GATHERED.
 */
__noinline int record_gathered(__u32 bank)
{
	struct digest_bank *b = bpf_map_lookup_elem(&digest_banks, &bank);
	__u32 first = bank * digest_config.lines;
	__u64 loaded = 0;

	if (!b) /* cannot be */
		return 0;
	/* All misses at once; each of the writes would wait for its own. */
	for (int i = 0; i < GATHERED; i++) {
		__u32 at = first + hash_reduce(b->gathered[i].digest, digest_config.lines);
		struct line *l = bpf_map_lookup_elem(&digest_lines, &at);

		if (l)
			loaded |= l->words[0];
	}
	asm volatile("" : : "r"(loaded));
	for (int i = 0; i < GATHERED; i++) {
		__u64 h = b->gathered[i].digest;
		__u32 at = first + hash_reduce(h, digest_config.lines);
		struct line *l = bpf_map_lookup_elem(&digest_lines, &at);

		if (l && line_set(l, h, digest_config.bits))
			b->loops += watch_again(&b->gathered[i]);
	}
	b->packets += GATHERED;
	/* From now on the filter has them: who reads asks for these first. */
	barrier();
	b->count = 0;
	return 0;
}

/* Gathers a packet that passes. Its frame may have been changed since it was parsed. */
static __always_inline void record_digest(struct xdp_md *ctx, struct cpu_row *row)
{
	__u32 bank = 2 * bpf_get_smp_processor_id() + (row->banks >> DIGEST_BANK & 1), n;
	struct digest_bank *b = bpf_map_lookup_elem(&digest_banks, &bank);
	struct cursor c = {(void *)(long)ctx->data + row->packet.network,
			   (void *)(long)ctx->data_end};
	struct invariant inv;
	struct sighting *s;
	__u64 *from, *to;
	__u8 *ip = c.pos;

	if (!b) /* cannot be */
		return;
	n = b->count;
	s = &b->gathered[n % GATHERED];
	if ((void *)(ip + 9) > c.end) {
		b->skipped += 1;
		return;
	}
	if (*ip >> 4 == 4 && invariant_v4(&c, &inv)) {
		s->ttl = ip[8];
		s->digest = xxh64_28(digest_config.seed, inv.w[0], inv.w[1], inv.w[2], inv.w[3]);
	} else if (*ip >> 4 == 6 && invariant_v6(&c, &inv)) {
		s->ttl = ip[7];
		s->digest = xxh64_60(digest_config.seed, inv.w);
	} else {
		b->skipped += 1;
		return;
	}
	/* Of IPv4, more than there is. */
	from = (void *)row->packet.src;
	to = (void *)s->src;
	for (int i = 0; i < 4; i++)
		to[i] = from[i];
	s->family = row->packet.family;
	s->proto = row->packet.proto;
	s->slice = b->slice;
	barrier();
	b->count = n + 1;
	if (n + 1 >= GATHERED)
		record_gathered(bank);
}

#endif
