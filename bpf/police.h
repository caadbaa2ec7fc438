/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Policing: what an interface receives is limited to a rate, which flows share fairly,
 * and flows that do not respond are penalised. The bins, marks, penalties and moving
 * hash come from Stochastic Fair Blue (Feng, Kandlur, Saha and Shin, INFOCOM 2001),
 * the rates from approximate fair dropping (Pan, Breslau, Prabhakar and Shenker,
 * 2003): Blue steers by the length of a queue, and here is none. The paper's own rule,
 * on virtual queues, is the second controller. The twin of filter/sfb's Policer.
 *
 * A packet is counted in a bin of each level, and marked or dropped with the least
 * probability of these. Counters are of the CPU; the probabilities, which all CPUs
 * read, are computed from their sums once a tick, by the packets that arrive behind a
 * deadline, a slice of the bins at a time. Then follows a token bucket, of which each
 * CPU takes credit for some packets at a time.
 */
#ifndef WEIR_POLICE_H
#define WEIR_POLICE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "hash.h"
#include "key.h"
#include "loop.h"
#include "packet.h"
#include "stats.h"

#define POLICER_LEVELS 4
#define POLICER_BINS   256 /* of a level */
#define POLICER_ALL    (POLICER_LEVELS * POLICER_BINS)
#define POLICER_SLICES 16
#define POLICER_SLICE  (POLICER_ALL / POLICER_SLICES) /* bins */

#define POLICER_TICK 10000000ULL /* ns between two updates of a bin */
#define POLICER_STEP (POLICER_TICK / POLICER_SLICES)
#define POLICER_IDLE 8 /* ticks after which nothing of a rate remains */

#define POLICER_COST_SHIFT 16
#define POLICER_SHIFT	   8 /* of units in a tick */

#define PROBABILITY_ONE	 65536U /* in the penalty box */
#define PROBABILITY_HALF 32768U

/*
 * A bin's integrator: half a second with a probability of ½ or more leads to the box. Out
 * again leads as long at a probability of 0, so that a flow that pauses for less stays
 * there. As in the paper, what is between neither raises nor lowers: while the others do
 * not need the link, the fair rate is the whole limit, and a flow that does not respond
 * would come out with anything below twice that, and take the link until it is in again.
 */
#define BOX_RISE 4
#define BOX_AT	 200
#define BOX_MAX	 255

/* Of the paper's controller, per packet and in ns. */
#define BLUE_RISE    66	 /* 0.1 % */
#define BLUE_FALL    655 /* 1 % */
#define BLUE_FULL    30000000ULL
#define BLUE_BACKLOG 5000000ULL

enum policer_controller {
	POLICER_FAIR,
	POLICER_BLUE,
	POLICER_BUCKET, /* the token bucket alone */
};

/* The Go names are in filter/sfb. */
enum policer_outcome {
	POLICER_PASSED,
	POLICER_MARKED,
	POLICER_EARLY, /* dropped by its probability */
	POLICER_BOXED, /* dropped in the penalty box */
	POLICER_OVER,  /* dropped by the bucket */
	POLICER_OUTCOMES,
};

/* Constants of the program for an interface. Units are bytes or packets. */
struct policer_config {
	struct secret secret; /* of the hash of flows */
	struct shape v4;
	struct shape v6;
	__u64 cost;	 /* of a unit, in ns / 2^POLICER_COST_SHIFT; 0: no policing */
	__u64 bin_cost;	 /* the same in a bin of the paper's controller */
	__u64 depth;	 /* of the bucket, in ns */
	__u64 limit;	 /* units in a tick times 2^POLICER_SHIFT */
	__u64 target;	 /* of units that the bucket lacks, in the same */
	__u64 gap;	 /* ns between two packets out of the penalty box */
	__u64 lifetime;	 /* of a hash function, in ns */
	__u32 chunk;	 /* units of credit that a CPU takes at a time */
	__u32 cpus;	 /* possible ones */
	__u8 by_packets; /* the unit */
	__u8 tuple;	 /* keys have the tuple form, not that of one address */
	__u8 controller;
	__u8 stopped; /* the clock is the state's, for tests */
	__u8 pad[4];
};

struct policer_bin {
	__u64 seen;  /* by the paper's controller: when the virtual queue is empty; else units */
	__u64 rate;  /* units in a tick times 2^POLICER_SHIFT, averaged */
	__u64 level; /* of its integrator */
};

struct policer_slice {
	__u64 at;    /* when it was updated */
	__u64 epoch; /* in which */
	__u64 boxed; /* bins that are in the penalty box, or would be without the suspension */
	__u64 pad;
};

/* Shared by all CPUs; parts that are often written have their own cache lines. */
struct policer_state {
	__u64 next;  /* when the next slice is due */
	__u64 epoch; /* number of the hash function */
	__u64 clock; /* if it is stopped */
	__u64 identity;
	__u8 seed[32]; /* of the secret */

	__u64 full; /* when the bucket is full again */
	__u64 pad1[7];

	__u64 release; /* when the next packet leaves the penalty box */
	__u64 pad2[7];

	__u64 slice; /* the next one, modulo POLICER_SLICES */
	__u64 fair;  /* units in a tick times 2^POLICER_SHIFT that each flow may have */
	__u64 queue; /* what the bucket lacked at the last tick, in the same */
	__u64 ticked;
	__u64 moves;	 /* when the hash function changes */
	__u64 suspended; /* so many bins would be in the penalty box that none is */
	__u64 pad3[2];

	__u32 probability[POLICER_ALL];
	struct policer_slice slices[POLICER_SLICES];
	struct policer_bin bins[POLICER_ALL];
};

struct policer_cpu {
	__u64 credit; /* units */
	__u64 random;
	struct counter outcomes[POLICER_OUTCOMES];
	__u64 pad[4];
	__u64 arrived[POLICER_ALL]; /* units */
};

_Static_assert(sizeof(struct policer_cpu) % 64 == 0, "CPUs do not share cache lines");

KEPT_ARRAY(policer_now, struct policer_state);
/* max_entries: the number of possible CPUs */
KEPT_ARRAY(policer_cpus, struct policer_cpu);

volatile const struct policer_config policer = {};

static __always_inline struct policer_state *this_policer(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&policer_now, &zero);
}

/* Whether a time has come. */
static __always_inline int is_due(__u64 time, __u64 now)
{
	return (__s64)(now - time) >= 0;
}

/* The share of a rate, of 256, that remains after as many ticks: three quarters in each. */
static volatile const __u8 policer_keep[16] = {0, 192, 144, 108, 81, 61, 46, 35};

/*
 * Updates a bin by what all CPUs have counted since the last update, and returns
 * whether it belongs into the penalty box. ticks: those since then, at most
 * POLICER_IDLE; 0: the hash function is new.
 */
__noinline int policer_update(__u32 bin, __u64 microseconds, __u32 ticks)
{
	struct policer_state *s = this_policer();
	__u64 sum = 0, rate, fair, keep, p = 0;
	struct policer_bin *b;
	__u32 last;

	if (!s || bin >= POLICER_ALL || !microseconds) /* impossible */
		return 0;
	b = &s->bins[bin];
	for (__u32 cpu = 0; cpu < policer.cpus; cpu++) {
		__u32 at = cpu; /* Linux 5.10 forgets a value that it has written to the stack */
		struct policer_cpu *c = bpf_map_lookup_elem(&policer_cpus, &at);

		if (c)
			sum += *(volatile __u64 *)&c->arrived[bin];
	}
	rate = sum - b->seen;
	if ((__s64)rate < 0 && ticks) /* another CPU has seen more meanwhile */
		rate = 0;
	else
		b->seen = sum;
	if (!ticks) {
		b->rate = 0;
		b->level = 0;
		s->probability[bin] = 0;
		return 0;
	}
	rate = rate * ((POLICER_TICK >> 10) << POLICER_SHIFT) / microseconds;
	keep = policer_keep[ticks % 16];
	rate = (b->rate * keep + rate * (256 - keep)) >> 8;
	b->rate = rate;
	fair = s->fair;
	last = s->probability[bin];
	if (rate > fair)
		p = PROBABILITY_ONE - 1 - fair * (PROBABILITY_ONE - 1) / rate;
	if (p >= PROBABILITY_HALF) {
		b->level += BOX_RISE * ticks;
		if (b->level > BOX_MAX)
			b->level = BOX_MAX;
	} else if (!p || last < PROBABILITY_ONE) {
		b->level = b->level > ticks ? b->level - ticks : 0;
	}
	if (b->level < BOX_AT) {
		s->probability[bin] = p;
		return 0;
	}
	s->probability[bin] = s->suspended ? p : PROBABILITY_ONE;
	return 1;
}

/*
 * Once a tick: steers the fair rate so that the bucket lacks what it should, and
 * changes the hash function when its time has come.
 */
__noinline int policer_steer(__u64 now)
{
	struct policer_state *s = this_policer();
	__u64 elapsed, queue = 0, boxed = 0;
	__s64 fair;

	if (!s) /* impossible */
		return 0;
	elapsed = now - s->ticked;
	if (!is_due(s->ticked + POLICER_TICK / 2, now))
		return 0;
	s->ticked = now;
	if (!is_due(s->full, now))
		queue = (s->full - now) * policer.limit / POLICER_TICK;
	/* A proportional-integral controller, with gains of 1.8 and 1.7 over 16. */
	fair = s->fair;
	fair -= (461 * (__s64)(queue - policer.target) -
		 435 * (__s64)(s->queue - policer.target)) >>
		12;
	if (!queue)
		fair += (fair >> 8) + 1;
	if (fair < (__s64)(policer.limit >> 12) + 1)
		fair = (policer.limit >> 12) + 1;
	if (fair > (__s64)policer.limit || elapsed >= POLICER_IDLE * POLICER_TICK)
		fair = policer.limit;
	s->fair = fair;
	s->queue = queue;
	for (int i = 0; i < POLICER_SLICES; i++)
		boxed += s->slices[i].boxed;
	s->suspended = boxed > POLICER_ALL / 4;
	if (is_due(s->moves, now)) {
		s->moves = now + policer.lifetime;
		s->epoch += 1;
	}
	return 0;
}

/*
 * Updates the slice that is due. Two CPUs may do so at once. The second may have the older time:
 * then it does nothing, or averages a rate twice.
 */
__noinline int policer_turn(__u64 now)
{
	struct policer_state *s = this_policer();
	__u32 n, ticks = 0, boxed = 0;
	struct policer_slice *slice;
	__u64 elapsed;

	if (!s) /* impossible */
		return 0;
	n = s->slice % POLICER_SLICES;
	s->slice = n + 1;
	if (is_due(s->next + POLICER_TICK, now))
		s->next = now - POLICER_TICK + POLICER_STEP;
	s->next += POLICER_STEP;
	if (!n)
		policer_steer(now);
	slice = &s->slices[n];
	elapsed = now - slice->at;
	if (!is_due(slice->at + POLICER_TICK / 2, now))
		return 0;
	slice->at = now;
	if (slice->epoch == s->epoch) {
		if (policer.controller == POLICER_BLUE)
			return 0;
		ticks = POLICER_IDLE;
		if (elapsed < POLICER_IDLE * POLICER_TICK)
			ticks = (elapsed + POLICER_TICK / 2) / POLICER_TICK;
	}
	slice->epoch = s->epoch;
	for (int i = 0; i < POLICER_SLICE; i++)
		boxed += policer_update(n * POLICER_SLICE + i, elapsed >> 10, ticks);
	slice->boxed = boxed;
	return 0;
}

static __always_inline __u64 policer_hash(const struct packet *p)
{
	const volatile struct policer_config *c = &policer;

	if (p->family == 4)
		return c->tuple ? packet_hash(KEY_V4_FLOW, &c->v4, p, &c->secret)
				: packet_hash(KEY_V4, &c->v4, p, &c->secret);
	return c->tuple ? packet_hash(KEY_V6_FLOW, &c->v6, p, &c->secret)
			: packet_hash(KEY_V6, &c->v6, p, &c->secret);
}

/* The paper's rule for a bin, a virtual queue of all that arrives. Returns its probability. */
static __always_inline __u32 policer_blue(struct policer_state *s, __u32 bin, __u32 units,
					  __u64 now)
{
	__u64 empty = s->bins[bin].seen;
	__u32 p = s->probability[bin];

	if (is_due(empty, now)) {
		empty = now;
		p = p > BLUE_FALL ? p - BLUE_FALL : 0;
	} else if (is_due(now + BLUE_FULL, empty) && is_due(now + BLUE_BACKLOG, s->full)) {
		p = p + BLUE_RISE < PROBABILITY_ONE ? p + BLUE_RISE : PROBABILITY_ONE;
	}
	empty += units * policer.bin_cost >> POLICER_COST_SHIFT;
	if (is_due(now + 2 * BLUE_FULL, empty))
		empty = now + 2 * BLUE_FULL;
	s->bins[bin].seen = empty;
	s->probability[bin] = p;
	return p;
}

/* Counts a packet of a flow in its bins, and returns the least of their probabilities. */
static __always_inline __u32 policer_least(struct policer_state *s, struct policer_cpu *c, __u64 h,
					   __u32 units, __u64 now)
{
	__u32 least = PROBABILITY_ONE;
	__u64 z = hash_nth(h, s->epoch);

#pragma unroll
	for (int i = 0; i < POLICER_LEVELS; i++) {
		__u32 bin = i * POLICER_BINS + (z >> 8 * i & (POLICER_BINS - 1)), p;

		if (policer.controller == POLICER_BLUE) {
			p = policer_blue(s, bin, units, now);
		} else {
			c->arrived[bin] += units;
			p = s->probability[bin];
		}
		least = least_of(p, least);
	}
	return least;
}

/* Takes a packet's credit, if there is any. */
static __always_inline int policer_pay(struct policer_state *s, struct policer_cpu *c, __u32 units,
				       __u64 now)
{
	if (c->credit < units) {
		__u64 take = units > policer.chunk ? units : policer.chunk, full = s->full;
		__u64 cost = take * policer.cost >> POLICER_COST_SHIFT;

		if ((__s64)(full - now) > (__s64)policer.depth)
			return 0;
		if (is_due(full, now))
			/* Two CPUs may race here, which lets one chunk more pass. */
			s->full = now + cost;
		else
			__sync_fetch_and_add(&s->full, cost);
		c->credit += take;
	}
	c->credit -= units;
	return 1;
}

/* Xorshift, by Marsaglia; the control plane seeds it. 16 bits. */
static __always_inline __u32 policer_random(struct policer_cpu *c)
{
	__u64 x = c->random;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	c->random = x;
	return x >> 48;
}

/*
 * Whether a packet can say that congestion was experienced (RFC 3168). If write is
 * set, it then does, and the checksum of an IPv4 header is right.
 */
static __always_inline int ecn_mark(struct xdp_md *ctx, const struct packet *p, int write)
{
	void *ip = (void *)(long)ctx->data + p->network, *end = (void *)(long)ctx->data_end;
	__u8 *byte = ip;

	if (ip + 20 > end)
		return 0;
	if (p->family == 6) {
		if (!(byte[1] & 0x30))
			return 0;
		if (write)
			byte[1] |= 0x30;
		return 1;
	}
	if (!(byte[1] & 3))
		return 0;
	if (write && (byte[1] & 3) != 3) {
		__u16 *word = ip;
		__u64 sum = (__u16) ~*word;

		byte[1] |= 3;
		fix_checksum(ip, sum + *word);
	}
	return 1;
}

static __always_inline enum policer_outcome
policer_judge(struct xdp_md *ctx, struct policer_state *s, struct policer_cpu *c,
	      const struct packet *p, __u32 units, __u64 now)
{
	int marked = 0;

	if (policer.controller != POLICER_BUCKET) {
		__u32 least = policer_least(s, c, policer_hash(p), units, now);

		if (least >= PROBABILITY_ONE) {
			if (!is_due(s->release, now))
				return POLICER_BOXED;
			s->release = now + policer.gap;
		} else if (least) {
			__u32 r = policer_random(c);

			/* Above one half marks have been in vain for a growing share. */
			if (r + PROBABILITY_ONE < 2 * least)
				return POLICER_EARLY;
			if (r < least) {
				if (!ecn_mark(ctx, p, 0))
					return POLICER_EARLY;
				marked = 1;
			}
		}
	}
	if (!policer_pay(s, c, units, now))
		return POLICER_OVER;
	if (!marked)
		return POLICER_PASSED;
	if (!monitor)
		ecn_mark(ctx, p, 1);
	return POLICER_MARKED;
}

/*
 * Returns the outcome for this CPU's packet, an enum policer_outcome. A global
 * function, so that the verifier checks it once.
 */
__noinline int policer_admit(struct xdp_md *ctx)
{
	struct policer_state *s = this_policer();
	__u32 cpu = bpf_get_smp_processor_id(), units;
	struct cpu_row *row = this_row();
	struct policer_cpu *c = bpf_map_lookup_elem(&policer_cpus, &cpu);
	enum policer_outcome outcome;
	__u64 now;

	if (!s || !c || !row || !policer.cost) /* impossible */
		return POLICER_PASSED;
	now = policer.stopped ? s->clock : bpf_ktime_get_ns();
	if (policer.controller != POLICER_BUCKET)
		/* Many only behind a pause. */
		for (int i = 0; i < POLICER_SLICES && is_due(s->next, now); i++)
			policer_turn(now);
	units = policer.by_packets ? 1 : row->packet.len;
	outcome = policer_judge(ctx, s, c, &row->packet, units, now);
	if (outcome < POLICER_OUTCOMES) /* always true, but the verifier cannot know */
		count(&c->outcomes[outcome], row->packet.len);
	return outcome;
}

#endif
