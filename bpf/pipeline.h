/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The verdict pipeline:
 *
 *	parse -> failsafe -> loop check -> heavy hitters -> block match -> (allow match) ->
 *	count, event -> loop filter, digest -> multicast
 *
 * The allow lists are asked only when a stage wants to drop, so they cost clean
 * traffic nothing. Heavy hitters are counted before the lists are asked, so that
 * a false positive, too, is seen to be heavy. What is exempt skips all stages between
 * failsafe and counting but this one, in which it has no penalties. filter/verdict's Decide is the
 * reference for the answers.
 */
#ifndef WEIR_PIPELINE_H
#define WEIR_PIPELINE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "digest.h"
#include "event.h"
#include "failsafe.h"
#include "lists.h"
#include "loop.h"
#include "multicast.h"
#include "packet.h"
#include "parse.h"
#include "penalty.h"
#include "policy.h"
#include "stats.h"
#include "tracker.h"

volatile const struct failsafe failsafe_config = {};

/* Sets the cursor to the frame, which is this CPU's packet from now on. */
static __always_inline struct cpu_row *begin(struct xdp_md *ctx, struct cursor *c)
{
	struct cpu_row *row = this_row();

	*c = (struct cursor){.pos = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end};
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

/*
 * Counts the packet in every tracker, and sets p->punished to the reason to drop it
 * for a penalty of its flow, or to REASON_CLEAN. What is exempt has no penalty.
 */
static __always_inline void police(struct cpu_row *row)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct packet *p = &row->packet;

	p->punished = REASON_CLEAN;
#pragma unroll
	for (int i = 0; i < MAX_TRACKERS && i < tracker_count; i++) {
		const volatile struct tracker *t = &trackers[i];
		__u32 bank = 2 * cpu + (row->banks >> i & 1);
		__u64 h;

		if (p->exempt && t->unexempt)
			continue;
		h = tracker_hash(t, p);
		count_flow(i, p, bank * bank_lines + t->first,
			   bank * bank_buckets + t->first_bucket, h);
		if (t->punishes && row->penalties && !p->punished && !p->exempt)
			p->punished = penalty_of(h, t->by_bytes ? p->len : 1);
		barrier();
	}
}

/*
 * Counts this CPU's packet, which is or would be dropped, in the tracker of dropped
 * packets. A global function, so that its work is checked once.
 */
__noinline int count_dropped(void)
{
	const volatile struct tracker *t = &trackers[DROP_TRACKER];
	struct cpu_row *row = this_row();
	__u32 bank;

	if (!row) /* impossible */
		return 0;
	bank = 2 * bpf_get_smp_processor_id() + (row->banks >> DROP_BANK & 1);
	count_flow(DROP_TRACKER, &row->packet, bank * bank_lines + t->first,
		   bank * bank_buckets + t->first_bucket, tracker_hash(t, &row->packet));
	return 0;
}

/* Whether the parser's complaint alone would drop the packet, if not for monitor mode. */
static __always_inline int is_refused(enum reason r)
{
	return drop_malformed &&
	       (r == REASON_TRUNCATED || r == REASON_MALFORMED || r == REASON_UNPARSED);
}

/* The reason for which the packet leaves. */
static __always_inline enum reason decide(struct xdp_md *ctx, struct cursor *c, struct cpu_row *row)
{
	struct packet *p = &row->packet;
	int list = LIST_NONE;

	p->reason = parse(ctx, c, p);
	barrier();
	if (!p->family)
		return p->reason;
	p->exempt = failsafe(&failsafe_config, p);
	barrier();
	if (loop_node.words && !p->exempt) {
		if (!loop_edge)
			check_loop(ctx, p);
		barrier();
		if (p->loop == LOOP_LOOPED && action_of(REASON_LOOPED) == XDP_DROP)
			return is_allowed() ? REASON_ALLOWED : REASON_LOOPED;
	}
	police(row);
	barrier();
	if (p->exempt)
		return p->exempt;

	if (!is_empty(&block))
		list = match_block(p);
	if (list == LIST_NONE && !p->punished && !is_refused(p->reason))
		return loop_node.words && p->loop == LOOP_LOOPED ? REASON_LOOPED : p->reason;
	if (is_allowed())
		return REASON_ALLOWED;
	p->list = list;
	if (list != LIST_NONE) {
		count_list(list, p->len);
		return monitor ? REASON_WOULD_BLOCK : REASON_BLOCKED;
	}
	if (p->punished)
		return monitor ? REASON_WOULD_BLOCK : p->punished;
	return p->reason;
}

/* Counts the packet and returns its action. Every packet leaves through here. */
static __always_inline int leave(struct xdp_md *ctx, struct cpu_row *row, enum reason r)
{
	struct packet *p = &row->packet;
	int action;

	p->reason = r;
	barrier();
	count_reason(row, p->reason, p->len);
	sample(ctx, p->reason);
	if (trackers[DROP_TRACKER].lines && p->family && is_unwanted(p->reason))
		count_dropped();
	action = action_of(p->reason);
	if (action == XDP_PASS && p->family) {
		if (loop_node.words)
			carry_filter(ctx, p);
		if (digest_config.lines)
			record_digest(ctx, row);
	}
	return action;
}

static __always_inline int run_pipeline(struct xdp_md *ctx)
{
	struct cursor c;
	struct cpu_row *row = begin(ctx, &c);

	if (!row) /* impossible: each possible CPU has one */
		return XDP_PASS;
	return leave(ctx, row, decide(ctx, &c, row));
}

/* The program that is attached: the pipeline and, where a packet passes, multicast. */
static __always_inline int process(struct xdp_md *ctx)
{
	int action = run_pipeline(ctx);

	if (action == XDP_PASS && multicast.ports && is_multicast_frame(ctx))
		action = multicast_forward(ctx);
	return action;
}

#endif
