/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The verdict pipeline:
 *
 *	parse -> failsafe -> loop check -> heavy hitters -> block match -> (allow match) ->
 *	digest -> pass
 *
 * The allow lists are asked only when a stage wants to drop, so they cost
 * clean traffic nothing. Heavy hitters are counted before the lists are asked:
 * a false positive, too, must be seen to be heavy. The reference that states
 * what this must answer is filter/verdict's Decide.
 */
#ifndef WEIR_PIPELINE_H
#define WEIR_PIPELINE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "digest.h"
#include "event.h"
#include "failsafe.h"
#include "hot.h"
#include "loop.h"
#include "packet.h"
#include "parse.h"
#include "penalty.h"
#include "set.h"
#include "stats.h"
#include "table.h"
#include "tracker.h"

/*
 * The knobs of a generation, set before loading: the verifier removes what
 * they switch off.
 */
volatile const __u64 hash_seed = 0; /* secret, drawn anew for each generation */
volatile const struct key_set block = {};
volatile const struct key_set allow = {};
volatile const struct failsafe failsafe_config = {};
volatile const __u8 drop_malformed = 0; /* 1: drop what is truncated, malformed, unparsed */
volatile const __u8 monitor = 0;	/* 1: count, and drop nothing */
volatile const __u8 frags = 0;		/* 1: the kernel has multi-buffer XDP */

/* The filter maps have just the sizes that the knobs state. */
ARRAY(block_lines, struct line);
ARRAY(block_buckets, struct bucket);
ARRAY(block_marks4, __u64);
ARRAY(block_marks6, struct line);
ARRAY(block_hot, struct bucket);
ARRAY(allow_lines, struct line);
ARRAY(allow_buckets, struct bucket);
ARRAY(allow_marks4, __u64);
ARRAY(allow_marks6, struct line);

/* The second line, weights, the table: what a key of the block set meets behind its first line. */
static __always_inline int confirm_block(__u64 h)
{
	__u32 extra, list;

	if (!rest_test(&block_lines, block.lines, block.rest, h))
		return LIST_NONE;
	if (block.hot_buckets) {
		extra = hot_find(&block_hot, block.hot_buckets, h);
		if (extra && !hot_test(&block_lines, block.lines, block.rest, extra, h))
			return LIST_NONE;
	}
	if (!block.buckets)
		return LIST_UNKNOWN;
	list = table_find(&block_buckets, block.buckets, h);
	if (!list)
		count_refuted();
	return list ? list : LIST_NONE;
}

/*
 * Global functions, because the kernel verifies such a one once and for itself;
 * inline, it would be walked again for each way that leads to it. They find the
 * packet where this CPU keeps it.
 */

__noinline int called_confirm_block(__u64 h)
{
	return confirm_block(h);
}

__noinline int confirm_allow(__u64 h)
{
	__u32 list;

	if (!rest_test(&allow_lines, allow.lines, allow.rest, h))
		return LIST_NONE;
	list = table_find(&allow_buckets, allow.buckets, h);
	return list ? list : LIST_NONE;
}

__noinline int called_match_block(void)
{
	struct set_maps maps = {&block_lines, &block_marks4, &block_marks6, called_confirm_block};
	struct cpu_row *row = this_row();

	if (!row)
		return LIST_NONE;
	set_match(&block, maps, &row->packet, hash_seed);
	return row->packet.list;
}

/*
 * The number of the block list that holds the packet, or LIST_NONE. Each call of a
 * function costs some 9 ns where the CPU's returns are guarded against speculation,
 * so that only a set of many shapes makes any.
 */
static __always_inline int match_block(struct packet *p)
{
	struct set_maps maps = {&block_lines, &block_marks4, &block_marks6, confirm_block};

	if (set_shapes(&block) > FEW_SHAPES)
		return called_match_block();
	set_match(&block, maps, p, hash_seed);
	return p->list;
}

/* The same of the allow lists, which only what is to be dropped is looked up in. */
__noinline int match_allow(void)
{
	struct set_maps maps = {&allow_lines, &allow_marks4, &allow_marks6, confirm_allow};
	struct cpu_row *row = this_row();

	if (!row)
		return LIST_NONE;
	set_match(&allow, maps, &row->packet, hash_seed);
	return row->packet.list;
}

/*
 * Counts the packet in every tracker, and sets p->punished to the reason to drop
 * it for a heavy flow that it is of, or REASON_CLEAN.
 */
static __always_inline void police(struct cpu_row *row)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct packet *p = &row->packet;

	p->punished = REASON_CLEAN;
	for (int i = 0; i < MAX_TRACKERS && i < tracker_count; i++) {
		const volatile struct tracker *t = &trackers[i];
		__u32 bank = 2 * cpu + (row->banks >> i & 1);
		__u64 h = tracker_hash(t, p);

		count_flow(i, p, bank * bank_lines + t->first,
			   bank * bank_buckets + t->first_bucket, h);
		if (t->punishes && row->penalties && !p->punished)
			p->punished = penalty_of(h, t->by_bytes ? p->len : 1);
		settle();
	}
}

/* Whether the parser's complaint alone would drop the packet. */
static __always_inline int drops_malformed(enum reason r)
{
	return drop_malformed &&
	       (r == REASON_TRUNCATED || r == REASON_MALFORMED || r == REASON_UNPARSED);
}

/* Monitor mode tells of loops, as a domain does that is not to drop them. */
static __always_inline int drops_looped(void)
{
	return loop_node.drops && !monitor;
}

static __always_inline int verdict(enum reason r)
{
	switch (r) {
	case REASON_BLOCKED:
	case REASON_LIMITED:
	case REASON_HEAVY:
		return XDP_DROP;
	case REASON_OVERTAGGED:
		return monitor ? XDP_PASS : XDP_DROP;
	case REASON_LOOPED:
		return drops_looped() ? XDP_DROP : XDP_PASS;
	default:
		return drops_malformed(r) && !monitor ? XDP_DROP : XDP_PASS;
	}
}

static __always_inline enum reason decide(struct xdp_md *ctx, struct cursor *c, struct cpu_row *row)
{
	struct packet *p = &row->packet;
	enum reason safe;
	int list = LIST_NONE;

	p->reason = parse(ctx, c, p);
	settle();
	if (!p->family)
		return p->reason;
	safe = failsafe(&failsafe_config, p);
	if (safe != REASON_CLEAN)
		return safe;
	if (loop_node.words) {
		if (!loop_edge)
			check_loop(ctx, p);
		settle();
		if (p->loop == LOOP_LOOPED && drops_looped())
			return allow.lines && match_allow() != LIST_NONE ? REASON_ALLOWED
									 : REASON_LOOPED;
	}
	police(row);
	settle();

	if (block.lines)
		list = match_block(p);
	if (list == LIST_NONE && !p->punished && !drops_malformed(p->reason))
		return loop_node.words && p->loop == LOOP_LOOPED ? REASON_LOOPED : p->reason;
	if (allow.lines && match_allow() != LIST_NONE)
		return REASON_ALLOWED;
	p->list = list;
	if (list != LIST_NONE) {
		count_list(list, p->len);
		return monitor ? REASON_MONITORED : REASON_BLOCKED;
	}
	if (p->punished)
		return monitor ? REASON_MONITORED : p->punished;
	return p->reason;
}

/* Sets the cursor to the frame; it is this CPU's packet from now on. */
static __always_inline struct cpu_row *begin(struct xdp_md *ctx, struct cursor *c)
{
	struct cpu_row *row = this_row();

	c->pos = (void *)(long)ctx->data;
	c->end = (void *)(long)ctx->data_end;
	c->paged = 0;
	if (!row)
		return 0;
	row->packet.len = c->end - c->pos;
	if (frags) {
		__u32 whole = bpf_xdp_get_buff_len(ctx);

		c->paged = whole > row->packet.len;
		row->packet.len = whole;
	}
	return row;
}

/* Counts the packet; every packet leaves through here. */
static __always_inline enum reason leave(struct xdp_md *ctx, struct cpu_row *row, enum reason r)
{
	row->packet.reason = r;
	settle();
	count_reason(row, row->packet.reason, row->packet.len);
	sample(ctx, row->packet.reason);
	if (loop_node.words && row->packet.family && verdict(row->packet.reason) == XDP_PASS)
		carry_filter(ctx, &row->packet);
	if (digest_config.lines && row->packet.family && verdict(row->packet.reason) == XDP_PASS)
		record_digest(ctx, row);
	return row->packet.reason;
}

static __always_inline enum reason run_pipeline(struct xdp_md *ctx)
{
	struct cursor c;
	struct cpu_row *row = begin(ctx, &c);

	if (!row) /* cannot be: each possible CPU has one */
		return REASON_CLEAN;
	return leave(ctx, row, decide(ctx, &c, row));
}

#endif
