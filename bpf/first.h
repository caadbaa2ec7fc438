/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * First-seen flows: a filter remembers recent flows, and a flow that is not in it is
 * new. It is counted by its importance, and has an event as long as the CPU's budget for
 * that importance lasts. The twin is filter/newflow's Watcher; the filters are in
 * filter/recent.
 *
 * Two generations of a Bloom filter remember the flows of the last one to two windows. A
 * flow enters the present generation with its first packet there, so that a flow with
 * packets in each window stays known. The control plane clears the former generation
 * and exchanges the two, at the end of a window or when the present one is full.
 *
 * Or cells of 3 bits remember them, of which a flow has four in a line, each in a word of
 * its own. It raises them to a value that its importance may determine, and all cells of
 * one or two words of the line sink by one for it: flows fade as others come, without the
 * control plane.
 *
 * All CPUs share the filter, since a flow's packets may arrive on any. Once a flow
 * is known, its line is only read. Two CPUs that write a word at the same time may lose
 * what one flow has set, which is then counted twice.
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
#define FIRST_BITS 4 /* that a flow sets in its line; or its cells there */

#define CELL_BITS   3
#define CELL_MAX    ((1ULL << CELL_BITS) - 1)
#define WORD_CELLS  (64 / CELL_BITS)
#define CELL_LOWEST 0x1249249249249249ULL /* the lowest bit of each cell of a word */

#define FIRST_LEVELS 7	 /* of importance, from 1 */
#define FIRST_ROW    8	 /* counters by importance; 0 is not used */
#define FIRST_SIZE   220 /* bytes a level: the last has full frames */

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
	__u8 sinks;   /* words of a line that sink for a flow; 0: there are two generations */
	__u8 pad[3];
	__u8 values[FIRST_ROW]; /* to which a flow raises its cells, by importance */
};

/* The control plane's record of the user of this memory, and of its windows. */
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
	__u64 spent; /* when the budget of events is whole again */
	/*
	 * Flows into a generation: new ones, and those that only the former had. With cells,
	 * those for which others sank.
	 */
	__u64 entered;
	__u64 flows[FIRST_ROW]; /* new, by importance */
	__u64 events[FIRST_ROW];
	__u64 suppressed[FIRST_ROW]; /* events that the budget had no room for */
	__u64 pad[6];
};

_Static_assert(sizeof(struct first_cpu) % 64 == 0, "CPUs do not share cache lines");

KEPT_ARRAY(first_now, struct first_state);
/* max_entries: the number of possible CPUs */
KEPT_ADDRESSED_ARRAY(first_cpus, struct first_cpu);
/* Two generations, or as many lines of cells. */
KEPT_ADDRESSED_ARRAY(first_lines, struct line);
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
	struct sampling *s = AT(sampling_now, 0);
	struct first_state *state;
	__u64 now;

	if (!first_seen.gap || !s || !s->first)
		return;
	now = bpf_ktime_get_ns();
	if (now >= s->until)
		return;
	if (first_seen.stopped) {
		__u32 none = 0;

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

/* The word of a flow's i-th cell in its line, and the cell's lowest bit there. */
static __always_inline __u32 cell_word(__u64 h, int i)
{
	return ((h >> 36) + i) % LINE_WORDS;
}

static __always_inline __u32 cell_shift(__u64 h, int i)
{
	return CELL_BITS * ((h >> 9 * i & 511) * WORD_CELLS >> 9);
}

static __always_inline __u64 least_cell(const struct line *l, __u64 h)
{
	__u64 least = CELL_MAX;

#pragma unroll
	for (int i = 0; i < FIRST_BITS; i++) {
		__u64 cell = l->words[cell_word(h, i)] >> cell_shift(h, i) & CELL_MAX;

		if (cell < least)
			least = cell;
	}
	return least;
}

/* Decrements all cells of a word that are not zero. */
static __always_inline void sink_word(__u64 *word)
{
	__u64 w = *word;

	*word = w - ((w | w >> 1 | w >> 2) & CELL_LOWEST);
}

/*
 * Enters a flow into cells: others sink for it unless all of its cells have half of its
 * value. Returns whether it was known. Which words sink derives from what the CPU has
 * counted, so that it is not the same for each packet of a flow.
 */
static __always_inline int enter_cells(struct first_cpu *c, __u64 h, __u32 level)
{
	__u64 value = first_seen.values[level % FIRST_ROW], least;
	__u32 at = hash_reduce(h, 2 * first_seen.lines), word;
	struct line *l = AT(first_lines, at);

	if (!l) /* impossible */
		return 1;
	least = least_cell(l, h);
	if (2 * least < value) {
		word = hash_nth(h, c->entered) >> 61;
		sink_word(&l->words[word]);
		if (first_seen.sinks > 1)
			sink_word(&l->words[(word + LINE_WORDS / 2) % LINE_WORDS]);
		c->entered += 1;
	}
#pragma unroll
	for (int i = 0; i < FIRST_BITS; i++) {
		__u64 *w = &l->words[cell_word(h, i)], before = *w;
		__u32 shift = cell_shift(h, i);

		if ((before >> shift & CELL_MAX) < value)
			*w = (before & ~(CELL_MAX << shift)) | value << shift;
	}
	return least > 0;
}

/* Enters a flow into the present generation. Returns whether the former one knows it. */
static __always_inline int enter_generation(struct cpu_row *row, struct first_cpu *c, __u64 h)
{
	__u32 bank = row->banks >> FIRST_BANK & 1;
	__u32 at = bank * first_seen.lines + hash_reduce(h, first_seen.lines);
	__u32 before = (1 - bank) * first_seen.lines + hash_reduce(h, first_seen.lines);
	struct line *present = AT(first_lines, at);
	struct line *former = AT(first_lines, before);
	int known;

	if (!present || !former) /* impossible */
		return 1;
	known = line_test(former, h, FIRST_BITS);
	line_set(present, h, FIRST_BITS);
	c->entered += 1;
	return known;
}

/*
 * Enters the flow of this CPU's packet, which the present generation does not know, or
 * which has a cell below its value. A global function, like those in lists.h.
 */
__noinline int first_enter(struct context *ctx, __u64 h)
{
	struct cpu_row *row = this_row();
	__u32 cpu = bpf_get_smp_processor_id(), level;
	struct first_cpu *c = AT(first_cpus, cpu);

	if (!c || !row) /* impossible */
		return 0;
	level = first_importance(&row->packet) % FIRST_ROW;
	if (first_seen.sinks ? enter_cells(c, h, level) : enter_generation(row, c, h))
		return 0;
	c->flows[level] += 1;
	first_event(ctx, c, level);
	return 0;
}

/* Whether nothing of the filter would change if it observed a flow once more. */
static __always_inline int first_settled(struct cpu_row *row, const struct packet *p, __u64 h)
{
	struct line *l;
	__u32 at;

	if (first_seen.sinks)
		at = hash_reduce(h, 2 * first_seen.lines);
	else
		at = (row->banks >> FIRST_BANK & 1) * first_seen.lines +
		     hash_reduce(h, first_seen.lines);
	l = AT(first_lines, at);
	if (!l) /* impossible */
		return 0;
	if (first_seen.sinks)
		return least_cell(l, h) >= first_seen.values[first_importance(p) % FIRST_ROW];
	return line_test(l, h, FIRST_BITS);
}

/* Remembers the flow of a packet that leaves, and counts it if it is new. */
static __always_inline void observe_flow(struct context *ctx, struct cpu_row *row,
					 const struct packet *p)
{
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
	if (first_settled(row, p, h))
		return;
	keep(row, p);
	first_enter(ctx, h);
}

#endif
