/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The verdict pipeline:
 *
 *	parse -> failsafe -> loop check -> heavy hitters -> block match -> (allow match, reply) ->
 *	policing -> count, event, first-seen flows -> loop filter, digest -> multicast
 *
 * The allow lists are asked only when a stage wants to drop, so they cost clean
 * traffic nothing; and before policing, which leaves out what they contain. Heavy
 * hitters are counted before the lists are asked, so that a false positive, too, is
 * seen to be heavy. What is exempt skips all stages between failsafe and counting
 * but this one, in which it has no penalties. filter/verdict's Decide is the
 * reference for the answers.
 */
#ifndef WEIR_PIPELINE_H
#define WEIR_PIPELINE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "context.h"
#include "digest.h"
#include "event.h"
#include "failsafe.h"
#include "first.h"
#include "guard.h"
#include "inner.h"
#include "lists.h"
#include "packet.h"
#include "parse.h"
#include "penalty.h"
#include "policy.h"
#include "replies.h"
#include "stats.h"
#include "threshold.h"
#include "tracker.h"

#ifdef WEIR_TC
#include "receive_only.h"
#else
#include "loop.h"
#include "multicast.h"
#include "police.h"
#endif

volatile const __u8 lean = 0; /* 1: plain packets take the lean path */

/* Sets the cursor to the frame, which is this CPU's packet from now on. */
static __always_inline struct cpu_row *begin(struct context *ctx, struct cursor *c)
{
	struct cpu_row *row = this_row();

	*c = (struct cursor){.pos = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end};
	if (!row)
		return 0;
	row->packet.len = c->end - c->pos;
	if (frags) {
		__u32 whole = buffer_length(ctx);

		c->paged = whole > row->packet.len;
		row->packet.len = whole + bytes_beside(ctx);
	}
	return row;
}

/*
 * Counts the packet in tracker i, if its bit is set in counts, and sets p->punished to the
 * reason to drop it for a penalty of its flow, unless it has one already. What is exempt
 * has no penalty.
 */
static __always_inline void police_by(int i, int counts, struct cpu_row *row, struct packet *p)
{
	const volatile struct tracker *t = &trackers[i];
	__u32 bank = 2 * bpf_get_smp_processor_id() + (row->banks >> i & 1);
	__u64 h, units;

	if (p->exempt && t->unexempt)
		return;
	h = tracker_hash(t, p);
	if (counts & 1 << i) {
		units = count_flow(i, row, p, bank * bank_lines + t->first,
				   bank * bank_buckets + t->first_bucket, h);
		if (t->punishes && units) {
			keep(row, p);
			report_flow(i, h, units);
		}
	}
	if (t->punishes && row->penalties && !p->punished && !p->exempt)
		p->punished = penalty_of(h, t->by_bytes ? p->len : 1);
}

static __always_inline void police(struct context *ctx, struct cpu_row *row)
{
	int counts = bank_pairs ? counting(ctx) : -1;

	row->packet.punished = REASON_CLEAN;
	for (int i = 0; i < MAX_TRACKERS && i < tracker_count; i++) {
		police_by(i, counts, row, &row->packet);
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
	count_flow(DROP_TRACKER, row, &row->packet, bank * bank_lines + t->first,
		   bank * bank_buckets + t->first_bucket, tracker_hash(t, &row->packet));
	return 0;
}

/* Whether the parser's complaint alone would drop the packet, if not for monitor mode. */
static __always_inline int is_refused(enum reason r)
{
	return r == REASON_OVERTAGGED ||
	       (drop_malformed &&
		(r == REASON_TRUNCATED || r == REASON_MALFORMED || r == REASON_UNPARSED));
}

/*
 * The reason for which a packet leaves that all stages have seen, list being the block
 * list that matches it.
 */
static __always_inline enum reason judge(struct context *ctx, struct cpu_row *row, struct packet *p,
					 int list)
{
	if (list == LIST_NONE && !p->punished && !is_refused(p->reason))
		return loop_node.words && p->loop == LOOP_LOOPED ? REASON_LOOPED : p->reason;
	if (is_allowed(row, p))
		return REASON_ALLOWED;
	p->list = list;
	if (list != LIST_NONE && is_reply(ctx, row, p)) {
		if (!p->punished)
			return REASON_REPLY;
		p->list = list = LIST_NONE;
	}
	if (list != LIST_NONE) {
		count_list(list, p->len);
		return monitor ? REASON_WOULD_BLOCK : REASON_BLOCKED;
	}
	if (p->punished)
		return monitor ? REASON_WOULD_BLOCK : p->punished;
	return p->reason;
}

/*
 * The reason for which a packet leaves that would leave for r: what passes, and is on no
 * allow list, is limited to the rate of the interface.
 */
static __always_inline enum reason police_rate(struct context *ctx, struct cpu_row *row,
					       struct packet *p, enum reason r)
{
	if (!policer.cost || r == REASON_ALLOWED || r == REASON_WOULD_BLOCK ||
	    action_of(r) != XDP_PASS || is_allowed(row, p) || policer_admit(ctx) < POLICER_EARLY)
		return r;
	p->list = LIST_NONE;
	p->punished = REASON_POLICED;
	return monitor ? REASON_WOULD_BLOCK : REASON_POLICED;
}

/* The reason for which the packet leaves. */
static __always_inline enum reason decide(struct context *ctx, struct cursor *c,
					  struct cpu_row *row)
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
			return is_allowed(row, p) ? REASON_ALLOWED : REASON_LOOPED;
	}
	police(ctx, row);
	barrier();
	if (p->exempt)
		return p->exempt;

	if (!is_empty(&block))
		list = match_block(p);
	if (inner && list == LIST_NONE && p->reason == REASON_CLEAN && tunnel_of(p)) {
		list = match_inner(ctx);
		barrier();
	}
	return police_rate(ctx, row, p, judge(ctx, row, p, list));
}

/* Counts the packet and returns its action. Every packet leaves through here. */
static __always_inline int leave(struct context *ctx, struct cpu_row *row, struct packet *p,
				 enum reason r)
{
	int action;

	p->reason = r;
	barrier();
	count_reason(row, p->reason, p->len);
	sample(ctx, row, p);
	if (trackers[DROP_TRACKER].lines && p->family && is_unwanted(p->reason)) {
		keep(row, p);
		count_dropped();
	}
	if (first_seen.lines)
		observe_flow(ctx, row, p);
	action = action_of(p->reason);
	if (reject && action == XDP_DROP)
		keep(row, p); /* for refuse() */
	if (action == XDP_PASS && p->family) {
		if (replies.on && outgoing) {
			leave_tunnel(p);
			remember(ctx, row, p);
		}
		if (loop_node.words) {
			leave_tunnel(p);
			if (multicast.ports && is_group(p))
				carry_group(ctx);
			else
				carry_filter(ctx, p);
		}
		if (digest_config.lines) {
			leave_tunnel(p);
			record_digest(ctx, row, p);
		}
	}
	return action;
}

#ifdef WEIR_TC

/* What matters of the frame lies in its first buffer, or the general path loads it. */
static __always_inline int is_paged(struct context *ctx, __u32 len)
{
	return 0;
}

#else

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

/*
 * The offset of the flags in the kernel's struct xdp_buff. The lowest says that a frame
 * has further buffers, which is the case for few, and costs much less to read than the
 * length of the frame does to ask. 0: this kernel does not show it.
 */
volatile const __u32 buffer_flags = 0;

/* Whether the frame continues beyond its first buffer, of len bytes. */
static __always_inline int is_paged(struct context *ctx, __u32 len)
{
	if (!frags)
		return 0;
	if (buffer_flags)
		return *(__u32 *)(bpf_cast_to_kern_ctx(ctx) + buffer_flags) & 1;
	return buffer_length(ctx) != len;
}

#endif

/* Not an action: the packet takes the general path. */
#define TAKES_GENERAL_PATH -1

/*
 * Parses a whole IPv4 packet without a tag, options, fragments or an exemption, as most
 * are, into p, which stays in registers. Returns whether it is one.
 */
static __always_inline int parse_lean(struct context *ctx, struct packet *p)
{
	struct cursor c = {.pos = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end};
	struct ethhdr *eth = c.pos;
	struct iphdr *ip = (void *)(eth + 1);

	*p = (struct packet){.len = length_of(ctx), .network = sizeof(*eth)};
	if (is_paged(ctx, p->len) || (void *)(ip + 1) > c.end ||
	    eth->h_proto != bpf_htons(ETH_P_IP) || *(__u8 *)ip != 0x45 ||
	    ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_OFFSET_MASK))
		return 0;
	c.pos = ip;
	return parse_ipv4(&c, p) == REASON_CLEAN && !failsafe(&failsafe_config, p);
}

/*
 * The lean path, of most packets under most configurations. One that matches a list, or
 * has a penalty, becomes this CPU's packet, and leaves as in the general path. The
 * control plane sets `lean` where no more than this is configured.
 */
static __always_inline int run_lean(struct context *ctx)
{
	struct set_maps maps = BLOCK_MAPS(confirm_block);
	struct cpu_row *row;
	struct packet p;
	int list;

	if (!parse_lean(ctx, &p))
		return TAKES_GENERAL_PATH;
	row = this_row();
	if (!row) /* impossible */
		return TAKES_GENERAL_PATH;
	/* First, so that a mispredicted branch of the tracker does not delay its loads. */
	list = prefix_match(&block, maps, p.src[0], p.dst[0]);
	if (tracker_count)
		police_by(0, -1, row, &p);
	if (list == LIST_NONE && !p.punished) {
		count_reason(row, REASON_CLEAN, p.len);
		if (first_seen.lines)
			observe_flow(ctx, row, &p);
		if (digest_config.lines)
			record_digest(ctx, row, &p);
		remember(ctx, row, &p);
		return XDP_PASS;
	}
	return leave(ctx, row, &p, judge(ctx, row, &p, list));
}

static __always_inline int run_pipeline(struct context *ctx)
{
	struct cpu_row *row;
	struct cursor c;

	if (lean) {
		int action = run_lean(ctx);

		if (action != TAKES_GENERAL_PATH)
			return action;
	}
	row = begin(ctx, &c);
	if (!row) /* impossible: each possible CPU has one */
		return XDP_PASS;
	return leave(ctx, row, &row->packet, decide(ctx, &c, row));
}

/* The program that is attached: the pipeline and, where a packet passes, multicast. */
static __always_inline int process(struct context *ctx)
{
	int action = run_pipeline(ctx);

	if (action == XDP_PASS && multicast.ports && is_multicast_frame(ctx))
		action = multicast_forward(ctx);
	return action;
}

#endif
