/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Refuses TCP that a program on this host sends to what is listed: its packet becomes a
 * RST of the other side, which comes in by the interface that it was to leave by. A
 * program then sees that its connection is refused, or reset, instead of a timeout.
 *
 * Packets are changed by helpers alone: see receive_only.h.
 */
#ifndef WEIR_REJECT_H
#define WEIR_REJECT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "answer.h"
#include "context.h"
#include "packet.h"
#include "parse.h"
#include "replies.h"
#include "stats.h"

/* Makes the header of a TCP packet that of the RST which answers it. */
static __always_inline void answer_tcp(const struct packet *p, __u32 *tcp)
{
	__u8 flags = TCP_RST;

	tcp[0] = tcp[0] << 16 | tcp[0] >> 16;
	if (((__u8 *)tcp)[TCP_FLAGS] & TCP_ACK) {
		tcp[1] = tcp[2];
		tcp[2] = 0;
	} else {
		tcp[2] = bpf_htonl(bpf_ntohl(tcp[1]) + 1);
		tcp[1] = 0;
		flags |= TCP_ACK;
	}
	tcp[3] = bpf_htonl(TCP_WORDS << 28 | flags << 16);
	set_checksum(p, tcp, sizeof(__u32) * TCP_WORDS);
}

/* Writes the IP header of the answer. Returns its length, or a negative number. */
static __always_inline int answer_ip(struct context *ctx, const struct packet *p)
{
	__u32 ip[10];

	if (p->family == 4) {
		answer_v4(p, ip, sizeof(__u32) * TCP_WORDS);
		return bpf_skb_store_bytes(ctx, p->network, ip, sizeof(struct iphdr), 0);
	}
	answer_v6(p, ip, sizeof(__u32) * TCP_WORDS);
	return bpf_skb_store_bytes(ctx, p->network, ip, sizeof(ip), 0);
}

/* Returns what becomes of this CPU's packet, which is dropped. */
__noinline int refuse(struct context *ctx)
{
	struct cpu_row *row = this_row();
	__u32 tcp[TCP_WORDS], at, header;
	__u8 first, mac[2 * ETH_ALEN];
	struct packet *p;

	if (!row) /* impossible */
		return TC_ACT_SHOT;
	p = &row->packet;
	if (ctx->ingress_ifindex || p->reason != REASON_BLOCKED || p->proto != IPPROTO_TCP ||
	    !p->has_ports || !p->plain || p->encapsulated)
		return TC_ACT_SHOT;
	at = p->network;
	if (load_bytes(ctx, at, &first, 1))
		return TC_ACT_SHOT;
	header = p->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	if (load_bytes(ctx, at + (p->family == 4 ? (first & 15) * 4 : header), tcp, sizeof(tcp)) ||
	    ((__u8 *)tcp)[TCP_FLAGS] & TCP_RST)
		return TC_ACT_SHOT;
	if (bpf_skb_change_tail(ctx, at + header + sizeof(tcp), 0))
		return TC_ACT_SHOT;
	answer_tcp(p, tcp);
	if (answer_ip(ctx, p) || bpf_skb_store_bytes(ctx, at + header, tcp, sizeof(tcp), 0))
		return TC_ACT_SHOT;
	if (!no_link_header && (load_bytes(ctx, 0, mac, sizeof(mac)) ||
				bpf_skb_store_bytes(ctx, 0, mac + ETH_ALEN, ETH_ALEN, 0) ||
				bpf_skb_store_bytes(ctx, ETH_ALEN, mac, ETH_ALEN, 0)))
		return TC_ACT_SHOT;
	return bpf_redirect(ctx->ifindex, BPF_F_INGRESS);
}

#endif
