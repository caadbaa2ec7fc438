/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The verdict pipeline:
 *
 *	parse -> failsafe -> loop check -> heavy hitters, limits, patterns ->
 *	block match -> (allow match, reply) -> policing ->
 *	count, event, first-seen flows, sample -> loop filter, digest -> multicast
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

#include "collateral.h"
#include "context.h"
#include "digest.h"
#include "event.h"
#include "failsafe.h"
#include "first.h"
#include "scan.h"
#include "inner.h"
#include "limit.h"
#include "lists.h"
#include "packet.h"
#include "parse.h"
#include "pattern.h"
#include "penalty.h"
#include "policy.h"
#include "replies.h"
#include "rules.h"
#include "sampler.h"
#include "stats.h"
#include "threshold.h"
#include "tracker.h"

#ifdef WEIR_TC
#include "receive_only.h"
#else
#include "loop.h"
#include "multicast.h"
#include "police.h"
#include "syncookie.h"
#endif

/* Which plain packets take the lean path: LEAN_V4, LEAN_V6. */
volatile const __u8 lean = 0;

#define LEAN_V4 1
#define LEAN_V6 2

/* Sets the cursor to the frame, which is this CPU's packet from now on. */
static __always_inline struct cpu_row *begin(struct context *ctx, struct cursor *c)
{
	struct cpu_row *row = this_row();

	*c = (struct cursor){
		.pos = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end, .ctx = ctx};
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
 * Counts the packet in tracker i, if its bit is set in counts, behind the cold filter, and sets
 * p->punished to the reason to drop it for a penalty of its flow, unless it has one already. What
 * is exempt has no penalty.
 */
static __always_inline void track_by(int i, int counts, struct cpu_row *row, struct packet *p)
{
	const volatile struct tracker *t = &trackers[i];
	__u32 bank = bank_of(i, row);
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

static __always_inline void track(struct context *ctx, struct cpu_row *row)
{
	int counts = bank_pairs ? counting(ctx) : -1;

	row->packet.punished = REASON_CLEAN;
	for (int i = 0; i < MAX_TRACKERS && i < tracker_count; i++) {
		if (counts & 1 << i && !(row->packet.exempt && trackers[i].unexempt) &&
		    count_cold(&trackers[i], bank_line(i, row), &row->packet))
			counts &= ~(1 << i);
		if (counts & 1 << i || (trackers[i].punishes && row->penalties))
			track_by(i, counts, row, &row->packet);
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
	bank = bank_of(DROP_BANK, row);
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

/* Whether a list is one on trial, as match_block_by_rules() returns it. */
static __always_inline int is_trial(int list)
{
	return rules.on_trial && list > 0 && list & ON_TRIAL;
}

/*
 * The reason for which this CPU's packet leaves that would pass for r: what is above the rate of
 * the interface is dropped, whatever list on trial it is on, unless an allow list has it. A global
 * function, like those in lists.h.
 */
__noinline int limit_rate(struct context *ctx, int r)
{
	struct cpu_row *row = this_row();
	struct packet *p;

	if (!row) /* impossible */
		return r;
	p = &row->packet;
	/* The allow lists were asked before about what a list matches. */
	if (r != REASON_REPLY && r != REASON_WOULD_BLOCK && is_allowed(ctx, row, p)) {
		p->list = LIST_NONE; /* it does not pass by that list */
		return r;
	}
	if (policer_admit(ctx) < POLICER_EARLY)
		return r;
	p->list = LIST_NONE;
	p->punished = REASON_POLICED;
	return monitor ? REASON_WOULD_BLOCK : REASON_POLICED;
}

/*
 * The reason for which this CPU's packet leaves that a list on trial matches, and nothing
 * else would drop. A global function, like those in lists.h.
 */
__noinline int judge_trial(struct context *ctx, int list)
{
	enum reason r = REASON_WOULD_BLOCK;
	struct cpu_row *row = this_row();
	struct packet *p;

	if (!row) /* impossible */
		return REASON_CLEAN;
	p = &row->packet;
	if (is_allowed(ctx, row, p))
		return REASON_ALLOWED;
	p->list = list;
	note_conversation(ctx, row, p);
	if (is_reply(ctx, row, p))
		return REASON_REPLY;
	if (policer.cost)
		r = limit_rate(ctx, r);
	if (p->list != LIST_NONE)
		count_list(list, p->len);
	return r;
}

/*
 * The reason for which a packet leaves that all stages have seen, list being the block
 * list that matches it, as apply_rules() returns it. on_lean_path is a constant.
 */
static __always_inline enum reason judge(struct context *ctx, struct cpu_row *row, struct packet *p,
					 int list, int on_lean_path)
{
	if (is_trial(list)) {
		if (!p->punished && !is_refused(p->reason))
			return judge_trial(ctx, list & ~ON_TRIAL);
		list = LIST_NONE;
	}
	if (list == LIST_NONE && !p->punished && !is_refused(p->reason))
		return loop_node.words && p->loop == LOOP_LOOPED ? REASON_LOOPED : p->reason;
	if (on_lean_path ? is_plain_allowed(ctx, row, p) : is_allowed(ctx, row, p))
		return REASON_ALLOWED;
	p->list = list;
	if (list != LIST_NONE)
		note_conversation(ctx, row, p);
	if (list != LIST_NONE && is_reply(ctx, row, p)) {
		if (!p->punished)
			return REASON_REPLY;
		p->list = list = LIST_NONE;
	}
	if (list != LIST_NONE) {
		count_list(list, p->len);
		return monitor ? REASON_WOULD_BLOCK : REASON_BLOCKED;
	}
	if (p->punished) {
		if (patterning && !monitor && p->punished == REASON_PATTERN)
			p->list = count_pattern(p->len);
		return monitor ? REASON_WOULD_BLOCK : p->punished;
	}
	return p->reason;
}

/*
 * The reason for which the packet leaves. It settles p->reason, as leave() has it, p->list and
 * the packet's addresses: whatever names them reads them there, and no lookup may follow.
 */
static __always_inline enum reason decide(struct context *ctx, struct cursor *c,
					  struct cpu_row *row)
{
	struct packet *p = &row->packet;
	int list = LIST_NONE;
	enum reason r;

	p->reason = parse(ctx, c, p);
	barrier();
	if (!p->family) {
		p->list = LIST_NONE; /* not that of an earlier packet */
		return p->reason;
	}
	p->exempt = failsafe(&failsafe_config, p);
	barrier();
	if (loop_node.words && !p->exempt) {
		if (!loop_edge)
			check_loop(ctx, p);
		barrier();
		p->list = LIST_NONE;
		if (p->loop == LOOP_LOOPED && action_of(REASON_LOOPED) == XDP_DROP)
			return is_allowed(ctx, row, p) ? REASON_ALLOWED : REASON_LOOPED;
	}
	track(ctx, row);
	barrier();
	p->list = LIST_NONE;
	if (p->exempt)
		return p->exempt;
	if (limiting && !p->punished)
		p->punished = limit_source();
	if (patterning && !p->punished)
		p->punished = match_patterns(ctx);

	if (!is_empty(&block))
		list = apply_rules(ctx, p, match_block(p));
	if (inner && (list == LIST_NONE || is_trial(list)) && p->reason == REASON_CLEAN &&
	    tunnel_of(p)) {
		list = match_inner(ctx, list);
		barrier();
	}
	r = judge(ctx, row, p, list, 0);
	/* The action is asked first: what is dropped keeps the list that drops it. */
	if (policer.cost && action_of(r) == XDP_PASS && r != REASON_ALLOWED &&
	    r != REASON_WOULD_BLOCK) /* which judge_trial() has policed */
		return limit_rate(ctx, r);
	return r;
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
	sample_packet(ctx, row, p->reason);
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

#define ETHERNET_HEADER 14
#define IPV4_HEADER	20
#define IPV6_HEADER	40

/*
 * A packet on the lean path. It has no copy in memory until something else than the block
 * lists asks for it: see to_packet().
 */
struct plain {
	/* So many bytes before the header of IP, which is within the frame, with the ports behind it. */
	const void *link;
	__u32 len;
	__u8 family;
};

/* The words of a header at a place that is within the frame. */
static __always_inline __u32 word_at(const void *at, __u32 offset)
{
	return *(const __u32 *)(at + offset);
}

static __always_inline __u8 proto_of(const struct plain *h)
{
	return *(const __u8 *)(h->link + ETHERNET_HEADER + (h->family == 4 ? 9 : 6));
}

static __always_inline __u32 src_of(const struct plain *h, int word)
{
	return word_at(h->link, ETHERNET_HEADER + (h->family == 4 ? 12 : 8) + 4 * word);
}

static __always_inline __u32 dst_of(const struct plain *h, int word)
{
	return word_at(h->link, ETHERNET_HEADER + (h->family == 4 ? 16 : 24) + 4 * word);
}

/* The ports, or what is in their place. */
static __always_inline __u32 ports_of(const struct plain *h)
{
	return word_at(h->link, ETHERNET_HEADER + (h->family == 4 ? IPV4_HEADER : IPV6_HEADER));
}

static __always_inline int words_of(const struct plain *h)
{
	return h->family == 4 ? 1 : 4;
}

static __always_inline int has_ports(__u8 proto)
{
	switch (proto) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_DCCP:
	case IPPROTO_SCTP:
	case IPPROTO_UDPLITE:
		return 1;
	}
	return 0;
}

/* Makes a packet of the lean path one that any stage takes, all but its penalty. */
static __always_inline void to_packet(struct context *ctx, const struct plain *h, struct packet *p)
{
	p->family = h->family;
	p->proto = proto_of(h);
	p->has_ports = has_ports(p->proto);
	p->ports = p->has_ports ? ports_of(h) : 0;
	p->plain = 1;
	p->len = h->len;
	p->network = h->link - (void *)(long)ctx->data + ETHERNET_HEADER;
	p->reason = REASON_CLEAN;
	p->list = LIST_NONE;
	p->loop = 0;
	p->exempt = 0;
	p->encapsulated = 0;
	for (int i = 0; i < words_of(h); i++) {
		p->src[i] = src_of(h, i);
		p->dst[i] = dst_of(h, i);
	}
}

/* Whether a packet passes before any list, but for neighbour discovery. */
static __always_inline int is_exempt(const struct plain *h)
{
	struct packet p = {
		.family = h->family, .proto = proto_of(h), .plain = 1, .ports = ports_of(h)};

	if (p.proto != IPPROTO_UDP && !failsafe_config.n_ports && !failsafe_config.n_v4 &&
	    !failsafe_config.n_v6 && !failsafe_icmp)
		return 0;
	if (is_failsafe_icmp(p.family, p.proto, *(const __u8 *)&p.ports))
		return REASON_FAILSAFE;
	p.has_ports = has_ports(p.proto);
	for (int i = 0; i < words_of(h); i++) {
		p.src[i] = src_of(h, i);
		p.dst[i] = dst_of(h, i);
	}
	return failsafe(&failsafe_config, &p);
}

/*
 * Parses a whole packet of IPv4 without options or fragments, behind an Ethernet header, in
 * words. Returns whether it is one, and is not exempt.
 */
static __always_inline int parse_lean_v4(const void *link, struct plain *h)
{
	const void *ip = link + ETHERNET_HEADER;

	h->link = link;
	h->family = 4;
	if (*(__be16 *)(ip + 6) & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_OFFSET_MASK) ||
	    bpf_ntohs(*(__be16 *)(ip + 2)) < IPV4_HEADER + MIN_TRANSPORT)
		return 0;
	return !is_exempt(h);
}

/* The same of IPv6 without extension headers; of neighbour discovery, is_nd() must judge. */
static __always_inline int parse_lean_v6(const void *link, struct plain *h)
{
	const void *ip = link + ETHERNET_HEADER;
	__u8 proto, type = *(const __u8 *)(ip + IPV6_HEADER);

	h->link = link;
	h->family = 6;
	if (bpf_ntohs(*(__be16 *)(ip + 4)) < MIN_TRANSPORT)
		return 0;
	proto = proto_of(h);
	if (proto == IPPROTO_ICMPV6 ? type >= ICMPV6_ROUTER_SOLICITATION && type <= ICMPV6_REDIRECT
				    : proto != IPPROTO_TCP && proto != IPPROTO_UDP)
		return 0;
	return !is_exempt(h);
}

static __always_inline void copy_addresses(const struct plain *h, struct packet *p)
{
	for (int i = 0; i < words_of(h); i++) {
		p->src[i] = src_of(h, i);
		p->dst[i] = dst_of(h, i);
	}
}

/*
 * Probes the shapes of one form on the lean path. The form is a constant, and so are the masks of
 * a single shape.
 */
static __always_inline void probe_form(struct set_maps maps, struct packet *p, enum key_form form,
				       const volatile struct shape *shapes, const volatile __u32 *n)
{
	if (*n != 1) {
		probe_shapes(&block, maps, p, &key_secret, form, shapes, n);
	} else if (shapes[0].gate & p->open &&
		   (!is_flow(form) || p->has_ports || !shapes[0].ports_mask)) {
		if (block.classes)
			set_class_side(p, &shapes[0]);
		set_probe(&block, maps, p, packet_hash(form, &shapes[0], p, &key_secret));
	}
}

/* The number of the block list with an address of a packet of the lean path, or LIST_NONE. */
static __always_inline int match_addresses(const struct plain *h)
{
	struct set_maps maps = BLOCK_MAPS(open_block, confirm_block, 0);
	struct packet p = {.list = LIST_NONE};

	if (h->family == 4 && !block.n_v4)
		return prefix_match(&block, maps, src_of(h, 0), dst_of(h, 0), 1);
	if (h->family == 6 && !block.n_v6)
		return LIST_NONE;
	copy_addresses(h, &p);
	if (h->family == 4) {
		p.open = open_gates_v4(&block, maps, &p);
		if (block.gates_v4 & p.open)
			probe_form(maps, &p, KEY_V4, block.v4, &block.n_v4);
	} else {
		p.open = open_gates_v6(&block, maps, &p, &key_secret);
		if (block.gates_v6 & p.open)
			probe_form(maps, &p, KEY_V6, block.v6, &block.n_v6);
	}
	return p.list;
}

/* The number of the block list with the flow of a packet of the lean path, or LIST_NONE. */
static __always_inline int match_flow(const struct plain *h)
{
	/* Called: inline, the verifier would walk it once more for each shape. */
	struct set_maps maps = BLOCK_MAPS(0, called_confirm_block, 0);
	struct packet p = {.list = LIST_NONE, .proto = proto_of(h)};

	p.has_ports = has_ports(p.proto);
	p.ports = ports_of(h);
	copy_addresses(h, &p);
	if (h->family == 4) {
		p.open = open_gates_v4(&block, maps, &p);
		if (block.gates_v4 & p.open)
			probe_form(maps, &p, KEY_V4_FLOW, block.v4_flow, &block.n_v4_flow);
	} else {
		p.open = open_gates_v6(&block, maps, &p, &key_secret);
		if (block.gates_v6 & p.open)
			probe_form(maps, &p, KEY_V6_FLOW, block.v6_flow, &block.n_v6_flow);
	}
	return p.list;
}

/* The number of the block list that contains a packet of the lean path, or LIST_NONE. */
static __always_inline int match_plain(const struct plain *h)
{
	int list = match_addresses(h);

	if (h->family == 4 ? !block.n_v4_flow : !block.n_v6_flow)
		return list;
	return list == LIST_NONE ? match_flow(h) : list;
}

/* Whether a stage besides trackers needs each packet that passes. */
static __always_inline int asks_all(void)
{
	return patterning || first_seen.lines || digest_config.lines || (replies.on && outgoing);
}

/* Counts a packet of the lean path in a tracker's cold filter. Returns whether it has. */
static __always_inline int count_plain(int tracker, struct cpu_row *row, const struct plain *h)
{
	struct packet p = {.family = h->family, .len = h->len};
	__u32 line = bank_line(tracker, row);

	/* Now, so that no address is to be remembered during a call. */
	barrier();
	if (trackers[tracker].tuple) {
		p.proto = proto_of(h);
		p.ports = has_ports(p.proto) ? ports_of(h) : 0;
	}
	copy_addresses(h, &p);
	return count_cold(&trackers[tracker], line, &p);
}

/* Counts a packet of the lean path in a tracker, and sets what its flow's penalty is. */
static __always_inline void track_plain(struct context *ctx, int tracker, struct cpu_row *row,
					const struct plain *h)
{
	int counted = count_plain(tracker, row, h);

	if (counted && !(trackers[tracker].punishes && row->penalties))
		return;
	if (!asks_all())
		to_packet(ctx, h, &row->packet);
	track_by(tracker, counted ? 0 : -1, row, &row->packet);
}

/*
 * Whether nothing but counters and events concerns itself with a packet that the block lists
 * match. What an allow list reaches, it is asked about.
 */
static __always_inline int is_simple_drop(const struct plain *h)
{
	struct plain again = *h;

	if (replies.on || reject || trackers[DROP_TRACKER].lines || first_seen.lines ||
	    (monitor && digest_config.lines))
		return 0;
	if (is_empty(&allow)) /* a constant, before addresses are read */
		return 1;
	/* Clean packets are not to remember these addresses from above. */
	asm volatile("" : "+r"(again.link));
	return !may_be_allowed(h->family, src_of(&again, 0), dst_of(&again, 0));
}

/* Whether packets that leave for this reason have events. */
static __always_inline int is_sampled(enum reason r)
{
	struct sampling *s = AT(sampling_now, 0);

	return !s || s->one_in[r];
}

/* Whether something other than a block list wants to drop a packet of the lean path. */
static __always_inline int is_punished(const struct packet *p)
{
	return (tracker_count || patterning) && p->punished;
}

/* Whether SYNs that pass may be answered from here. */
static __always_inline int has_cookies(void)
{
	return syncookies.on && !monitor && !loop_node.words;
}

/* Whether a packet of the lean path may open a TCP connection. */
static __always_inline int may_open(struct context *ctx, const struct plain *h)
{
	const void *flags = h->link + ETHERNET_HEADER +
			    (h->family == 4 ? IPV4_HEADER : IPV6_HEADER) + TCP_FLAGS;

	return proto_of(h) == IPPROTO_TCP && flags + 1 <= (void *)(long)ctx->data_end &&
	       opens(*(__u8 *)flags);
}

/* What becomes of this CPU's packet, which passes. */
static __always_inline int answer_syn(struct context *ctx, struct cpu_row *row)
{
	if (make_cookie(ctx) && !is_allowed(ctx, row, &row->packet))
		return send_cookie(ctx);
	return XDP_PASS;
}

/* What becomes of a packet on the lean path, whose family is a constant. */
static __always_inline int judge_lean(struct context *ctx, const struct plain *h)
{
	struct cpu_row *row;
	struct packet *p;
	int list;

	/* First, so that a mispredicted branch of the tracker does not delay its loads. */
	list = match_plain(h);
	row = this_row();
	if (!row) /* impossible */
		return TAKES_GENERAL_PATH;
	p = &row->packet;
	if (asks_all())
		to_packet(ctx, h, p);
	if (asks_all() || tracker_count)
		p->punished = REASON_CLEAN;
	if (tracker_count)
		track_plain(ctx, 0, row, h);
	if (tracker_count > 1)
		track_plain(ctx, 1, row, h);
	if (patterning && !p->punished)
		p->punished = match_patterns(ctx);
	/* Expected, so that registers are kept for it. */
	if (__builtin_expect(list == LIST_NONE && !is_punished(p), 1)) {
		count_reason(row, REASON_CLEAN, h->len);
		if (first_seen.lines)
			observe_flow(ctx, row, p);
		if (digest_config.lines)
			record_digest(ctx, row, p);
		remember(ctx, row, p);
		sample_packet(ctx, row, REASON_CLEAN | SAMPLER_LEAN);
		if (has_cookies() && may_open(ctx, h)) {
			if (!asks_all())
				to_packet(ctx, h, p);
			return answer_syn(ctx, row);
		}
		return XDP_PASS;
	}
	if (rules.nodes && list > 0) {
		__u32 proto = proto_of(h);

		/* Whether it has ports is not to be remembered from above: that costs all packets. */
		asm volatile("" : "+r"(proto));
		list = settle_by(ctx, list, proto, has_ports(proto), ports_of(h));
	}
	if ((rules.nodes ? list >= 0 : list != LIST_NONE) && is_simple_drop(h)) {
		/* Not a variable: it would be on the stack, and no constant. */
		if (monitor ? !is_sampled(REASON_WOULD_BLOCK) : !is_sampled(REASON_BLOCKED)) {
			count_list(list, h->len);
			if (monitor) {
				count_reason(row, REASON_WOULD_BLOCK, h->len);
				sample_packet(ctx, row, REASON_WOULD_BLOCK | SAMPLER_LEAN);
				return XDP_PASS;
			}
			count_reason(row, REASON_BLOCKED, h->len);
			sample_packet(ctx, row, REASON_BLOCKED | SAMPLER_LEAN);
			return XDP_DROP;
		}
	}
	if (!asks_all()) {
		struct plain again = *h;

		/* Few packets get here: what only they need is not to be remembered from above. */
		asm volatile("" : "+r"(again.link));
		to_packet(ctx, &again, p);
		if (!tracker_count)
			p->punished = REASON_CLEAN;
	}
	barrier();
	if (rules.nodes && list == UNSETTLED)
		list = match_block_by_rules(ctx);
	return leave(ctx, row, p, judge(ctx, row, p, list, 1));
}

/*
 * The lean path, of most packets under most configurations: whole ones, with one tag at most. One
 * that matches a list, or has a penalty, becomes this CPU's packet, and leaves as in the
 * general path, unless it is counted and no more. The control plane sets `lean` where no
 * more than this is configured.
 */
static __always_inline int run_lean(struct context *ctx)
{
	void *pos = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct plain h;
	__u32 first;

	h.len = length_of(ctx);
	if (is_paged(ctx, h.len))
		return TAKES_GENERAL_PATH;
	for (int tags = 0;; tags++) {
		if (pos + ETHERNET_HEADER + IPV4_HEADER + MIN_TRANSPORT > end)
			return TAKES_GENERAL_PATH;
		/* EtherType, version and, of IPv4, the length of the header */
		first = word_at(pos, ETHERTYPE_OFFSET);
		if ((first & bpf_htonl(0xffffff00)) == bpf_htonl(ETH_P_IP << 16 | 0x4500))
			return parse_lean_v4(pos, &h) ? judge_lean(ctx, &h) : TAKES_GENERAL_PATH;
		if (lean & LEAN_V6 && (first & bpf_htonl(0xfffff000)) ==
					      bpf_htonl((__u32)ETH_P_IPV6 << 16 | 0x6000)) {
			if (pos + ETHERNET_HEADER + IPV6_HEADER + MIN_TRANSPORT > end)
				return TAKES_GENERAL_PATH;
			return parse_lean_v6(pos, &h) ? judge_lean(ctx, &h) : TAKES_GENERAL_PATH;
		}
		if (tags || !is_vlan(bpf_htons(bpf_ntohl(first) >> 16)))
			return TAKES_GENERAL_PATH;
		pos += sizeof(struct vlan_tag);
		/* A loop: two copies of the lean path would not be verified on all kernels. */
		asm volatile("" : "+r"(pos));
	}
}

static __always_inline int run_pipeline(struct context *ctx)
{
	struct cpu_row *row;
	struct cursor c;
	int action;

	if (lean) {
		action = run_lean(ctx);
		if (action != TAKES_GENERAL_PATH)
			return action;
	}
	row = begin(ctx, &c);
	if (!row) /* impossible: each possible CPU has one */
		return XDP_PASS;
	action = leave(ctx, row, &row->packet, decide(ctx, &c, row));
	return has_cookies() && action == XDP_PASS ? answer_syn(ctx, row) : action;
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
