/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The two sets of a generation: what the block lists have, and what the allow
 * lists have.
 */
#ifndef WEIR_LISTS_H
#define WEIR_LISTS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "cascade.h"
#include "hot.h"
#include "key.h"
#include "packet.h"
#include "rules.h"
#include "set.h"
#include "stats.h"
#include "table.h"

volatile const struct key_set block = {};
volatile const struct key_set allow = {};

/* The filter maps have just the sizes that the sets state. */
ARRAY(block_lines, struct line);
ARRAY(block_buckets, struct bucket);
ARRAY(block_marks4, __u64);
ARRAY(block_marks6, struct line);
ARRAY(block_hot, struct bucket);
ADDRESSED_ARRAY(block_prefixes, struct line);
ADDRESSED_ARRAY(block_spill, struct bucket);
ADDRESSED_ARRAY(block_front, __u64);
ADDRESSED_ARRAY(block_directory, __u64);
ARRAY(allow_lines, struct line);
ARRAY(allow_buckets, struct bucket);
ARRAY(allow_marks4, __u64);
ARRAY(allow_marks6, struct line);
ADDRESSED_ARRAY(allow_prefixes, struct line);
ADDRESSED_ARRAY(allow_spill, struct bucket);
ADDRESSED_ARRAY(allow_reach, __u64);

#define BLOCK_MAPS(open_match, confirm, settle)                                    \
	{&block_lines,                                                             \
	 &block_marks4,                                                            \
	 &block_marks6,                                                            \
	 {ARRAY_OF(block_prefixes), ARRAY_OF(block_spill), ARRAY_OF(block_front)}, \
	 ARRAY_OF(block_directory),                                                \
	 open_match,                                                               \
	 confirm,                                                                  \
	 settle}
/* The allow set has neither front nor directory, and asks none. */
#define ALLOW_MAPS(confirm, settle)                                                \
	{&allow_lines,                                                             \
	 &allow_marks4,                                                            \
	 &allow_marks6,                                                            \
	 {ARRAY_OF(allow_prefixes), ARRAY_OF(allow_spill), ARRAY_OF(block_front)}, \
	 ARRAY_OF(block_directory),                                                \
	 0,                                                                        \
	 confirm,                                                                  \
	 settle}

/*
 * The number of the block list with a prefix of a length that its directory has left
 * open, or LIST_NONE. A global function, since few packets get here.
 */
__noinline int open_block(__u32 open, __u32 src, __u32 dst)
{
	struct set_maps maps = BLOCK_MAPS(0, 0, 0);

	return open_match(&block, maps, open, src, dst);
}

/* The same of one that ends the search by rules. */
__noinline int open_block_by_rules(__u32 open, __u32 src, __u32 dst)
{
	struct set_maps maps = BLOCK_MAPS(0, 0, settle);

	return open_match(&block, maps, open, src, dst);
}

/*
 * Whether the bits of a hot block key are set that follow its k; a key that they refute is
 * counted. A global function, since the verifier walks through five lines in it, and few
 * keys get here.
 */
__noinline int hot_block(__u32 extra, __u64 h)
{
	int listed = hot_test(&block_lines, block.lines, block.rest, extra, h);

	if (!listed)
		count_refuted();
	return listed;
}

/* Whether the bits of a block key are set that its class has. A global function, like hot_block(). */
__noinline int classed_block(__u32 extra, __u64 h)
{
	return hot_test(&block_lines, block.lines, block.rest, extra, h);
}

/* The second line, weights, and table: what follows when a block key's first line has passed. */
static __always_inline int confirm_block(__u64 h)
{
	__u32 extra, list;

	if (!rest_test(&block_lines, block.lines, block.rest, h))
		return LIST_NONE;
	if (block.classes) {
		extra = class_extra(h);
		if (extra && !classed_block(extra, h))
			return LIST_NONE;
	}
	if (block.hot_buckets) {
		extra = hot_find(&block_hot, block.hot_buckets, h);
		if (extra && !hot_block(extra, h))
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
 * Global functions, because the verifier checks a global function once, in
 * isolation; inline, it would walk one again for each way that leads there. They
 * take the packet from this CPU's row.
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
	struct set_maps maps = BLOCK_MAPS(open_block, called_confirm_block, 0);
	struct cpu_row *row = this_row();

	if (!row)
		return LIST_NONE;
	set_match(&block, maps, &row->packet, &key_secret);
	return row->packet.list;
}

/*
 * The number of the block list that drops this CPU's packet, which a rule of the first match
 * leaves to others; or that of one on trial, plus ON_TRIAL; or LIST_NONE.
 */
__noinline int match_block_by_rules(struct context *ctx)
{
	struct set_maps maps = BLOCK_MAPS(open_block_by_rules, called_confirm_block, settle);
	__u64 *trial = search_word(1);
	struct cpu_row *row = this_row();

	if (!row || !trial || !begin_search(ctx, &row->packet)) /* impossible */
		return LIST_NONE;
	set_match(&block, maps, &row->packet, &key_secret);
	if (row->packet.list == LIST_NONE && *trial)
		return ON_TRIAL | *trial;
	return row->packet.list;
}

/* The same of a packet whose first match is list. */
static __always_inline int apply_rules(struct context *ctx, const struct packet *p, int list)
{
	if (!rules.nodes || list <= 0)
		return list;
	list = settle_first(ctx, list, p->proto | (p->has_ports ? WITH_PORTS : 0), p->ports);
	return list == UNSETTLED ? match_block_by_rules(ctx) : list;
}

/*
 * The number of the block list that contains the packet, or LIST_NONE. A function
 * call costs some 9 ns where the CPU's returns are guarded against speculation, so
 * only a set of many shapes makes any.
 */
static __always_inline int match_block(struct packet *p)
{
	struct set_maps maps = BLOCK_MAPS(open_block, confirm_block, 0);

	if (!has_few_shapes(&block))
		return called_match_block();
	set_match(&block, maps, p, &key_secret);
	return p->list;
}

/* The same of the allow lists, if a rule of the first match leaves a packet to others. */
__noinline int match_allow_by_rules(struct context *ctx)
{
	struct set_maps maps = ALLOW_MAPS(confirm_allow, settle);
	struct cpu_row *row = this_row();

	if (!row || !begin_search(ctx, &row->packet)) /* impossible */
		return LIST_NONE;
	set_match(&allow, maps, &row->packet, &key_secret);
	return row->packet.list;
}

/* The same, which are asked only for a packet about to be dropped. */
__noinline int match_allow(struct context *ctx)
{
	struct set_maps maps = ALLOW_MAPS(confirm_allow, 0);
	struct cpu_row *row = this_row();

	if (!row)
		return LIST_NONE;
	set_match(&allow, maps, &row->packet, &key_secret);
	return rule_node(row->packet.list) ? match_allow_by_rules(ctx) : row->packet.list;
}

/* Whether an allow list may have a packet whose addresses begin with these words. */
static __always_inline int may_be_allowed(__u8 family, __be32 src, __be32 dst)
{
	return !is_empty(&allow) &&
	       is_reached(&allow.reach, ARRAY_OF(allow_reach), family, src, dst);
}

static __always_inline int is_allowed(struct context *ctx, struct cpu_row *row, struct packet *p)
{
	if (is_empty(&allow))
		return 0;
	keep(row, p);
	p->list = match_allow(ctx);
	return p->list != LIST_NONE;
}

/* As many lengths of prefixes are looked up without a call. */
#define FEW_ALLOWED_LENGTHS 4

/* The same of a packet on the lean path. */
static __always_inline int is_plain_allowed(struct context *ctx, struct cpu_row *row,
					    struct packet *p)
{
	struct set_maps maps = ALLOW_MAPS(confirm_allow, 0);

	if (is_empty(&allow))
		return 0;
	if (rules.nodes || p->family != 4 || allow.gates_v4 ||
	    allow.n_prefixes > FEW_ALLOWED_LENGTHS)
		return is_allowed(ctx, row, p);
	p->list = prefix_match(&allow, maps, p->src[0], p->dst[0], 0);
	return p->list != LIST_NONE;
}

#endif
