/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The verdict pipeline:
 *
 *	parse -> failsafe -> block match -> (allow match) -> pass
 *
 * The allow lists are asked only when a stage wants to drop, so they cost
 * clean traffic nothing. The reference that states what this must answer is
 * filter/verdict's Decide.
 */
#ifndef WEIR_PIPELINE_H
#define WEIR_PIPELINE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "failsafe.h"
#include "packet.h"
#include "parse.h"
#include "set.h"
#include "stats.h"

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
#define ARRAY(name, value_type)                    \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);  \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__uint(max_entries, 1);            \
		__type(key, __u32);                \
		__type(value, value_type);         \
	} name SEC(".maps")

ARRAY(block_lines, struct line);
ARRAY(block_buckets, struct bucket);
ARRAY(block_marks4, __u64);
ARRAY(block_marks6, struct line);
ARRAY(allow_lines, struct line);
ARRAY(allow_buckets, struct bucket);
ARRAY(allow_marks4, __u64);
ARRAY(allow_marks6, struct line);

static __always_inline void match_block(struct packet *p)
{
	struct set_maps maps = {&block_lines, &block_buckets, &block_marks4, &block_marks6};

	set_match(&block, maps, p, hash_seed);
}

/*
 * A global function, because the kernel verifies it once and for itself;
 * inline, it would be walked again for each shape whose match leads here. It
 * finds the packet where this CPU keeps it. Returns whether a list allows it.
 */
__noinline int match_allow(void)
{
	struct set_maps maps = {&allow_lines, &allow_buckets, &allow_marks4, &allow_marks6};
	struct cpu_row *row = this_row();

	if (!row) /* cannot be */
		return 0;
	set_match(&allow, maps, &row->packet, hash_seed);
	return row->packet.list != LIST_NONE;
}

/* Whether the parser's complaint alone would drop the packet. */
static __always_inline int drops_malformed(enum reason r)
{
	return drop_malformed &&
	       (r == REASON_TRUNCATED || r == REASON_MALFORMED || r == REASON_UNPARSED);
}

static __always_inline int verdict(enum reason r)
{
	if (r == REASON_BLOCKED || (drops_malformed(r) && !monitor))
		return XDP_DROP;
	return XDP_PASS;
}

static __always_inline enum reason decide(struct cursor *c, struct packet *p)
{
	enum reason safe;
	int list;

	p->reason = parse(c, p);
	settle();
	if (!p->family)
		return p->reason;
	safe = failsafe(&failsafe_config, p);
	if (safe != REASON_CLEAN)
		return safe;
	match_block(p);
	list = p->list;
	if (list == LIST_NONE && !drops_malformed(p->reason))
		return p->reason;
	if (allow.lines && match_allow())
		return REASON_ALLOWED;
	if (list == LIST_NONE)
		return p->reason;
	count_list(list, p->len);
	return monitor ? REASON_MONITORED : REASON_BLOCKED;
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
static __always_inline enum reason leave(struct cpu_row *row, enum reason r)
{
	row->packet.reason = r;
	settle();
	count_reason(row, row->packet.reason, row->packet.len);
	return row->packet.reason;
}

static __always_inline enum reason run_pipeline(struct xdp_md *ctx)
{
	struct cursor c;
	struct cpu_row *row = begin(ctx, &c);

	if (!row) /* cannot be: each possible CPU has one */
		return REASON_CLEAN;
	return leave(row, decide(&c, &row->packet));
}

#endif
