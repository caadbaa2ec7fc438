/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rules of lists: for which packets a list is, by protocol, destination port, interface and
 * VLAN, and whether it is on trial. They are looked up by the number of the list that a key
 * has, so that packets which match nothing cost nothing. What a rule leaves out hides no
 * other list: the search goes on. The twin of filter/verdict's Rules.
 *
 * Packets are classified by bit vectors (Lakshman and Stiliadis, 1998): a bit for each of
 * the distinct rules. Rules are words of one array:
 *
 *	a node for each number of a list, or of a combination of lists that share a key
 *	for each protocol, the rules that match whatever the port, and where its pages are
 *	for each protocol with ports, where the page of each 256 ports is
 *	pages: the rules of each port
 *	for each VLAN, the rules that match there; 0 stands for none
 *	a line for each CPU
 *
 * A node is 0 where the list has no rule. Otherwise:
 *
 *	bits  0 … 15   number of the list
 *	bits 16 … 31   the node of further lists with the key, 0: there are none
 *	bits 32 … 39   number of the rule
 *	bit  63        set
 */
#ifndef WEIR_RULES_H
#define WEIR_RULES_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "cascade.h"
#include "context.h"
#include "ethertype.h"
#include "packet.h"
#include "parse.h"
#include "stats.h"

#define MAX_RULES 64

/* Constants of the program: the rules on trial, and where words begin. */
struct rule_layout {
	__u64 on_trial;
	__u32 nodes;	 /* their number; 0: no list has a rule */
	__u32 protocols; /* two words for each */
	__u32 vlans;	 /* 0: no rule has any */
	__u32 cpus;	 /* a line for each */
};

volatile const struct rule_layout rules = {};

/* The rules that match on the interface. */
volatile const __u64 rules_here = ~0ULL;

ADDRESSED_ARRAY(rule_words, __u64);

/* Of a list's number: the list is on trial, and the packet passes it. */
#define ON_TRIAL 0x10000

/* No list, but that the first match does not end the search. */
#define UNSETTLED -2

/* Of a protocol's number: the ports are known. */
#define WITH_PORTS 0x100

static __always_inline __u64 rule_word(__u32 i)
{
	__u64 *word = AT(rule_words, i);

	return word ? *word : 0;
}

/* The node of a match, 0 where none of its lists has a rule. */
static __always_inline __u64 rule_node(int list)
{
	return rules.nodes && list > 0 ? rule_word(list) : 0;
}

static __always_inline __u32 node_list(__u64 node)
{
	return node & 0xffff;
}

static __always_inline __u32 node_next(__u64 node)
{
	return node >> 16 & 0xffff;
}

static __always_inline int node_in(__u64 node, __u64 matching)
{
	return matching >> (node >> 32 & (MAX_RULES - 1)) & 1;
}

static __always_inline int is_on_trial(int list)
{
	__u64 node = rules.on_trial ? rule_node(list) : 0;

	return node && node_in(node, rules.on_trial);
}

/*
 * The VLAN of a frame: that of the outermost tag that names one, as priority tags do not.
 * 0: none does.
 */
__noinline int vlan_of(struct context *ctx)
{
	struct cursor c = {.loads = 1, .ctx = ctx, .at = ETHERTYPE_OFFSET, .frame = MAX_HEADERS};

#ifdef WEIR_TC
	if (ctx->vlan_present && ctx->vlan_tci & 0xfff)
		return ctx->vlan_tci & 0xfff;
	if (no_link_header)
		return 0;
#endif
	for (int i = 0; i < MAX_VLAN_TAGS; i++) {
		__be16 copy[2], *tag = peek(&c, copy, sizeof(copy));
		__u16 id;

		if (!tag || !is_vlan(tag[0]))
			return 0;
		id = bpf_ntohs(tag[1]) & 0xfff;
		if (id)
			return id;
		skip(&c, sizeof(copy));
	}
	return 0;
}

/* The rules that match where the packet is, whatever its protocol. */
static __always_inline __u64 rules_around(struct context *ctx)
{
	if (!rules.vlans)
		return rules_here;
	return rules_here & rule_word(rules.vlans + (vlan_of(ctx) & 0xfff));
}

/* The rules that match a packet's protocol and destination port. */
static __always_inline __u64 rules_within(__u8 proto, int with_ports, __u32 in_order)
{
	__u64 matching = rule_word(rules.protocols + 2 * proto), pages, page;
	__u32 port = bpf_ntohl(in_order) & 0xffff;

	if (!with_ports)
		return matching;
	pages = rule_word(rules.protocols + 2 * proto + 1);
	if (!pages)
		return matching;
	page = rule_word(pages + (port >> 8));
	return matching | rule_word(page + (port & 0xff));
}

/*
 * The list by which the first match in a search drops a packet, or UNSETTLED where a rule
 * leaves that to other matches.
 */
static __always_inline int settle_by(struct context *ctx, __u32 list, __u8 proto, int with_ports,
				     __u32 in_order)
{
	__u64 node = rule_word(list), matching;

	if (!node)
		return list;
	matching = rules_around(ctx) & rules_within(proto, with_ports, in_order);
	return node_in(node, matching & ~rules.on_trial) ? node_list(node) : UNSETTLED;
}

/* The same. A global function, since few packets get here. */
__noinline int settle_first(struct context *ctx, __u32 list, __u32 proto, __u32 in_order)
{
	return settle_by(ctx, list, proto, proto & WITH_PORTS, in_order);
}

static __always_inline __u64 *search_word(__u32 i)
{
	return AT(rule_words, rules.cpus + bpf_get_smp_processor_id() * LINE_WORDS + i);
}

/*
 * The number of the first list on trial that a header in this CPU's packet matches. It is in
 * memory, since the loop over headers has to repeat by a jump, and not by storing a variable.
 */
static __always_inline __u64 *tunnel_trial(void)
{
	return search_word(2);
}

/* Makes the rules that match the packet known to settle(). Returns 0 on impossible errors. */
static __always_inline int begin_search(struct context *ctx, const struct packet *p)
{
	__u64 *matching = search_word(0), *trial = search_word(1);

	if (!matching || !trial)
		return 0;
	*matching = rules_around(ctx) & rules_within(p->proto, p->has_ports, p->ports);
	*trial = 0;
	return 1;
}

/*
 * Returns the list by which a match ends a search, 0 if it does not. A global function, like
 * those in lists.h.
 */
__noinline int settle(__u32 list)
{
	__u64 *matching = search_word(0), *trial = search_word(1), node;

	if (!matching || !trial) /* impossible */
		return list;
	for (int i = 0; i < MAX_RULES && list; i++) {
		node = rule_word(list);
		if (!node)
			return list;
		if (node_in(node, *matching)) {
			if (!node_in(node, rules.on_trial))
				return node_list(node);
			if (!*trial)
				*trial = node_list(node);
		}
		list = node_next(node);
	}
	return 0;
}

#endif
