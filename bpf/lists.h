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

#define BLOCK_MAPS(confirm)                                                        \
	{&block_lines,                                                             \
	 &block_marks4,                                                            \
	 &block_marks6,                                                            \
	 {ARRAY_OF(block_prefixes), ARRAY_OF(block_spill), ARRAY_OF(block_front)}, \
	 ARRAY_OF(block_directory),                                                \
	 open_block,                                                               \
	 confirm}
/* The allow set has neither front nor directory, and asks none. */
#define ALLOW_MAPS(confirm)                                                        \
	{&allow_lines,                                                             \
	 &allow_marks4,                                                            \
	 &allow_marks6,                                                            \
	 {ARRAY_OF(allow_prefixes), ARRAY_OF(allow_spill), ARRAY_OF(block_front)}, \
	 ARRAY_OF(block_directory),                                                \
	 0,                                                                        \
	 confirm}

/*
 * The number of the block list with a prefix of a length that its directory has left
 * open, or LIST_NONE. A global function, since few packets get here.
 */
__noinline int open_block(__u32 open, __u32 src, __u32 dst)
{
	struct set_maps maps = BLOCK_MAPS(0);

	return open_match(&block, maps, open, src, dst);
}

/*
 * Whether the bits of a hot block key are set that follow its k. A global function, since
 * the verifier walks through five lines in it, and few keys get here.
 */
__noinline int hot_block(__u32 extra, __u64 h)
{
	return hot_test(&block_lines, block.lines, block.rest, extra, h);
}

/* The second line, weights, and table: what follows when a block key's first line has passed. */
static __always_inline int confirm_block(__u64 h)
{
	__u32 extra, list;

	if (!rest_test(&block_lines, block.lines, block.rest, h))
		return LIST_NONE;
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
	struct set_maps maps = BLOCK_MAPS(called_confirm_block);
	struct cpu_row *row = this_row();

	if (!row)
		return LIST_NONE;
	set_match(&block, maps, &row->packet, &key_secret);
	return row->packet.list;
}

/*
 * The number of the block list that contains the packet, or LIST_NONE. A function
 * call costs some 9 ns where the CPU's returns are guarded against speculation, so
 * only a set of many shapes makes any.
 */
static __always_inline int match_block(struct packet *p)
{
	struct set_maps maps = BLOCK_MAPS(confirm_block);

	if (!has_few_shapes(&block))
		return called_match_block();
	set_match(&block, maps, p, &key_secret);
	return p->list;
}

/* The same of the allow lists, which are asked only for a packet about to be dropped. */
__noinline int match_allow(void)
{
	struct set_maps maps = ALLOW_MAPS(confirm_allow);
	struct cpu_row *row = this_row();

	if (!row)
		return LIST_NONE;
	set_match(&allow, maps, &row->packet, &key_secret);
	return row->packet.list;
}

static __always_inline int is_allowed(struct cpu_row *row, struct packet *p)
{
	if (is_empty(&allow))
		return 0;
	keep(row, p);
	p->list = match_allow();
	return p->list != LIST_NONE;
}

/* As many lengths of prefixes are looked up without a call. */
#define FEW_ALLOWED_LENGTHS 4

/* The same of a packet on the lean path. */
static __always_inline int is_plain_allowed(struct cpu_row *row, struct packet *p)
{
	struct set_maps maps = ALLOW_MAPS(confirm_allow);

	if (is_empty(&allow))
		return 0;
	if (p->family != 4 || allow.gates_v4 || allow.n_prefixes > FEW_ALLOWED_LENGTHS)
		return is_allowed(row, p);
	p->list = prefix_match(&allow, maps, p->src[0], p->dst[0]);
	return p->list != LIST_NONE;
}

#endif
