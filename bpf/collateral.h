/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Collateral: the remote addresses that lists match and with which this host has conversed. It
 * opened the connection and was answered, or it answered a handshake that was completed. The
 * twin of filter/verdict's Collateral.
 *
 * Only a packet that a block list matches is looked at. A sender with a forged
 * address cannot make it part of a conversation. In TCP it needs the number by which a SYN of
 * this host is acknowledged, unless this host has sent data, which it does only after that. In
 * UDP it needs a socket that receives from one address only. A socket without a remote address
 * may be a server's, and its packets show nothing.
 */
#ifndef WEIR_COLLATERAL_H
#define WEIR_COLLATERAL_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "context.h"
#include "failsafe.h"
#include "packet.h"
#include "replies.h"
#include "stats.h"

/* A remote address, as the source of incoming or the destination of outgoing packets. */
struct partner {
	__u32 addr[4];
	__u8 family;
	__u8 out;
	__u8 pad[2];
};

/* How this host has conversed, in bits. */
#define OPENED_TCP   1
#define OPENED_UDP   2
#define ACCEPTED_TCP 4

struct conversation {
	__u64 first; /* packets that a list matched, by the kernel's clock */
	__u64 last;
	__u32 how;
	__u32 pad;
};

/* The programs of all interfaces share it, in both directions. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct partner);
	__type(value, struct conversation);
} partners SEC(".maps");

/* Whether a segment of a connection shows that both sides have taken part. */
static __always_inline int is_answered(const struct connection_state *s, const struct segment *g,
				       int opened)
{
	if (s->answered)
		return 1;
	return outgoing ? shows_answer(g, opened)
			: s->expected && g->acknowledgement == s->expected;
}

/* How this CPU's packet, whose connection is k, shows a conversation; 0: it does not. */
static __always_inline __u32 how_conversed(struct context *ctx, const struct packet *p,
					   const struct connection *k, __u64 now)
{
	struct connection_state *s = unexpired(bpf_map_lookup_elem(&connections, k), now);
	struct segment g = {};

	if (p->proto == IPPROTO_UDP)
		return s && !outgoing ? OPENED_UDP : 0;
	if (!read_segment(ctx, p, &g) || !(g.flags & TCP_ACK) || g.flags & TCP_RST ||
	    (outgoing && g.flags & TCP_SYN))
		return 0;
	if (s && is_answered(s, &g, 1))
		return OPENED_TCP;
	s = unexpired(bpf_map_lookup_elem(&accepted, k), now);
	return s && is_answered(s, &g, 0) ? ACCEPTED_TCP : 0;
}

/* Records the conversation of this CPU's packet. A global function, like those in lists.h. */
__noinline int record_conversation(struct context *ctx)
{
	struct cpu_row *row = this_row();
	struct conversation *known, fresh = {};
	struct partner partner = {};
	struct connection k;
	__u64 now = bpf_ktime_get_ns();
	__u32 how;

	if (!row || !may_have_connection(&row->packet))
		return 0;
	connection_of(&k, &row->packet);
	how = how_conversed(ctx, &row->packet, &k, now);
	if (!how)
		return 0;
	for (int i = 0; i < 4; i++)
		partner.addr[i] = k.remote[i];
	partner.family = row->packet.family;
	partner.out = outgoing;
	known = bpf_map_lookup_elem(&partners, &partner);
	if (known) {
		known->last = now;
		known->how |= how;
		return 0;
	}
	fresh.first = fresh.last = now;
	fresh.how = how;
	bpf_map_update_elem(&partners, &partner, &fresh, BPF_ANY);
	return 0;
}

/* Records the conversation of a packet that a block list matches, if it is of any. */
static __always_inline void note_conversation(struct context *ctx, struct cpu_row *row,
					      const struct packet *p)
{
	if (!collateral || p->encapsulated & IN_TUNNEL)
		return;
	keep(row, p);
	record_conversation(ctx);
}

#endif
