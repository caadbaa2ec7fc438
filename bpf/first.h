/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * First-seen flows: two generations of a Bloom filter remember the flows of the last
 * one to two windows, and a flow that is in neither is new. It is counted by its
 * importance, and has an event as long as the CPU's budget for that importance lasts.
 * The twin of filter/verdict's FirstSeen.
 *
 * A flow enters the present generation with its first packet there, so that a flow with
 * packets in each window stays known. The control plane clears the former generation
 * and exchanges the two, at the end of a window or when the present one is full.
 *
 * All CPUs share the generations, since a flow's packets may arrive on any. Once a flow
 * is known, its line is only read. Two CPUs that set bits of a word at the same time may
 * lose those of one flow, which is then counted twice.
 */
#ifndef WEIR_FIRST_H
#define WEIR_FIRST_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "cascade.h"
#include "context.h"
#include "event.h"
#include "failsafe.h"
#include "key.h"
#include "packet.h"
#include "stats.h"
#include "tracker.h"

/* The bit of cpu_row's banks that is the present generation, behind DROP_BANK. */
#define FIRST_BANK (MAX_TRACKERS + 2)
#define FIRST_BITS 4 /* that a flow sets in its line */

#define FIRST_LEVELS 7	 /* of importance, from 1 */
#define FIRST_ROW    8	 /* counters by importance; 0 is not used */
#define FIRST_SIZE   220 /* bytes a level: the last is that of full frames */

/* The share of a CPU's budget, in ns, that a level has beyond the one below it. */
#define FIRST_SHARE (1000000000ULL / FIRST_LEVELS)

/* Constants of the program. */
struct first_config {
	struct secret secret; /* of the hash of flows */
	struct shape v4;
	struct shape v6;
	__u64 gap;   /* ns of its budget that an event takes; 0: there are no events */
	__u32 lines; /* of a generation; 0: off */
	__u32 n_ports;
	struct failsafe_port ports[MAX_FAILSAFE]; /* destinations of the highest level */
	__u8 tuple; /* keys have the tuple form, not that of one address */
	__u8 by_size;
	__u8 by_list;
	__u8 stopped; /* the clock is the state's, for tests */
	__u8 pad[4];
};

/* The control plane's record of what uses this memory, and of its windows. */
struct first_state {
	__u8 seed[32]; /* of the secret */
	__u64 identity;
	__u64 clock;	    /* if it is stopped */
	__u64 began;	    /* when the present window did */
	__u64 entered;	    /* sum of the CPUs' at that time */
	__u64 flows;	    /* likewise */
	__u64 last_entered; /* in the last window */
	__u64 last_flows;   /* likewise */
	__u64 last_length;  /* of the last window, in ns; 0: none has ended */
	__u64 full;	    /* windows that ended early */
	__u64 pad[3];
};

struct first_cpu {
	__u64 spent;   /* when the budget of events is whole again */
	__u64 entered; /* flows into a generation: new ones, and those that only the former had */
	__u64 flows[FIRST_ROW]; /* new, by importance */
	__u64 events[FIRST_ROW];
	__u64 suppressed[FIRST_ROW]; /* events that the budget had no room for */
	__u64 pad[6];
};

_Static_assert(sizeof(struct first_cpu) % 64 == 0, "CPUs do not share cache lines");

ARRAY(first_now, struct first_state);
/* max_entries: the number of possible CPUs */
ARRAY(first_cpus, struct first_cpu);
/* Two generations. */
ARRAY(first_lines, struct line);
/* The importance of block lists, by number. */
ARRAY(first_levels, __u64);

volatile const struct first_config first_seen = {};

static __always_inline __u32 first_importance(const struct packet *p)
{
	__u32 level = 1, list = p->list;

	if (first_seen.by_size) {
		level += p->len / FIRST_SIZE;
		if (level > FIRST_LEVELS)
			level = FIRST_LEVELS;
	}
	if (first_seen.by_list && p->list > 0 &&
	    (p->reason == REASON_BLOCKED || p->reason == REASON_WOULD_BLOCK)) {
		__u64 *of = bpf_map_lookup_elem(&first_levels, &list);

		if (of && *of > level)
			level = *of;
	}
	for (int i = 0; i < MAX_FAILSAFE && i < first_seen.n_ports; i++)
		if (p->has_ports && p->proto == first_seen.ports[i].proto &&
		    (p->ports & bpf_htonl(0xffff)) ==
			    bpf_htonl(bpf_ntohs(first_seen.ports[i].port)))
			level = FIRST_LEVELS;
	return level % FIRST_ROW;
}

/*
 * Whether the budget has room for an event of this importance, which takes it. Each
 * level can use a share of it more than the one below: what is not important leaves
 * room for what is.
 */
static __always_inline int first_pay(struct first_cpu *c, __u32 level, __u64 now)
{
	__u64 spent = c->spent;

	if ((__s64)(spent - now) < 0)
		spent = now;
	if (spent - now >= level * FIRST_SHARE)
		return 0;
	c->spent = spent + first_seen.gap;
	return 1;
}

static __always_inline void first_event(struct context *ctx, struct first_cpu *c, __u32 level)
{
	__u32 zero = 0, none = 0;
	struct sampling *s = bpf_map_lookup_elem(&sampling_now, &zero);
	struct first_state *state;
	__u64 now;

	if (!first_seen.gap || !s || !s->first)
		return;
	now = bpf_ktime_get_ns();
	if (now >= s->until)
		return;
	if (first_seen.stopped) {
		state = bpf_map_lookup_elem(&first_now, &none);
		if (state)
			now = state->clock;
	}
	if (first_pay(c, level, now)) {
		c->events[level] += 1;
		emit_event(ctx, 1, level);
	} else {
		c->suppressed[level] += 1;
	}
}

/*
 * Enters the flow of this CPU's packet, which the present generation does not know. A
 * global function, like those in lists.h.
 */
__noinline int first_enter(struct context *ctx, __u64 h)
{
	struct cpu_row *row = this_row();
	__u32 cpu = bpf_get_smp_processor_id(), at, before, bank, level;
	struct first_cpu *c = bpf_map_lookup_elem(&first_cpus, &cpu);
	struct line *present, *former;
	int known;

	if (!c || !row) /* impossible */
		return 0;
	bank = row->banks >> FIRST_BANK & 1;
	at = bank * first_seen.lines + hash_reduce(h, first_seen.lines);
	before = (1 - bank) * first_seen.lines + hash_reduce(h, first_seen.lines);
	present = bpf_map_lookup_elem(&first_lines, &at);
	former = bpf_map_lookup_elem(&first_lines, &before);
	if (!present || !former) /* impossible */
		return 0;
	known = line_test(former, h, FIRST_BITS);
	line_set(present, h, FIRST_BITS);
	c->entered += 1;
	if (known)
		return 0;
	level = first_importance(&row->packet) % FIRST_ROW;
	c->flows[level] += 1;
	first_event(ctx, c, level);
	return 0;
}

/* Remembers the flow of a packet that leaves, and counts it if it is new. */
static __always_inline void observe_flow(struct context *ctx, struct cpu_row *row,
					 const struct packet *p)
{
	struct line *l;
	__u32 at;
	__u64 h;

	if (!p->family || p->exempt)
		return;
	if (p->family == 4)
		h = first_seen.tuple
			    ? packet_hash(KEY_V4_FLOW, &first_seen.v4, p, &first_seen.secret)
			    : packet_hash(KEY_V4, &first_seen.v4, p, &first_seen.secret);
	else
		h = first_seen.tuple
			    ? packet_hash(KEY_V6_FLOW, &first_seen.v6, p, &first_seen.secret)
			    : packet_hash(KEY_V6, &first_seen.v6, p, &first_seen.secret);
	at = (row->banks >> FIRST_BANK & 1) * first_seen.lines + hash_reduce(h, first_seen.lines);
	l = bpf_map_lookup_elem(&first_lines, &at);
	if (l && line_test(l, h, FIRST_BITS))
		return;
	keep(row, p);
	first_enter(ctx, h);
}

#endif
