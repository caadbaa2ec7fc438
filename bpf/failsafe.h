/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets that pass before any list is looked up, against lock-out: neighbour
 * discovery, DHCP, the configured management ports and networks, and kinds of ICMP
 * messages (icmp.h). (ARP has left in parse() already.)
 *
 * Of outgoing packets, the two sides are exchanged: packets pass that answer
 * such packets, or ask for them.
 *
 * Ports count only right behind the IP header: receivers deliver what follows an
 * extension header that they do not know to raw sockets, whatever it looks like.
 */
#ifndef WEIR_FAILSAFE_H
#define WEIR_FAILSAFE_H

#include <linux/in.h>
#include <bpf/bpf_endian.h>

#include "packet.h"
#include "parse.h"
#include "policy.h"

#define MAX_FAILSAFE 8

struct failsafe_port {
	__be16 port; /* destination */
	__u8 proto;
	__u8 pad;
};

struct failsafe_prefix { /* source */
	__u32 addr[4];
	__u32 mask[4];
};

struct failsafe {
	__u32 n_ports;
	__u32 n_v4;
	__u32 n_v6;
	struct failsafe_port ports[MAX_FAILSAFE];
	struct failsafe_prefix v4[MAX_FAILSAFE];
	struct failsafe_prefix v6[MAX_FAILSAFE];
};

volatile const struct failsafe failsafe_config = {};

/* The ports as the remote side of an outgoing packet would answer them. */
static __always_inline __u32 inbound_ports(const struct packet *p)
{
	return outgoing ? p->ports << 16 | p->ports >> 16 : p->ports;
}

static __always_inline const __u32 *remote(const struct packet *p)
{
	return outgoing ? p->dst : p->src;
}

static __always_inline const __u32 *local(const struct packet *p)
{
	return outgoing ? p->src : p->dst;
}

/* A pair of ports as in packet.ports. */
static __always_inline __u32 ports(__u16 src, __u16 dst)
{
	return bpf_htonl((__u32)src << 16 | dst);
}

/*
 * DHCP from a server to a client, which any host may be, and the other ways on a host
 * that serves or relays it.
 */
static __always_inline int is_dhcp(const struct packet *p)
{
	if (p->proto != IPPROTO_UDP || !p->has_ports || !p->plain)
		return 0;
	if (p->family == 4)
		return inbound_ports(p) == ports(67, 68) ||
		       (dhcp_server &&
			(inbound_ports(p) == ports(68, 67) || inbound_ports(p) == ports(67, 67)));
	/* Routers do not forward to or from link-local addresses. */
	return (inbound_ports(p) == ports(547, 546) && is_link_local(local(p))) ||
	       (dhcp_server && ((inbound_ports(p) == ports(546, 547) && is_link_local(remote(p))) ||
				inbound_ports(p) == ports(547, 547)));
}

static __always_inline int failsafe_port(const volatile struct failsafe *f, const struct packet *p)
{
	if (!p->has_ports || !p->plain)
		return 0;
	for (int i = 0; i < MAX_FAILSAFE && i < f->n_ports; i++)
		if (p->proto == f->ports[i].proto && (inbound_ports(p) & bpf_htonl(0xffff)) ==
							     bpf_htonl(bpf_ntohs(f->ports[i].port)))
			return 1;
	return 0;
}

static __always_inline int failsafe_prefix(const volatile struct failsafe *f,
					   const struct packet *p)
{
	const __u32 *addr = remote(p);

	if (p->family == 4) {
		for (int i = 0; i < MAX_FAILSAFE && i < f->n_v4; i++)
			if ((addr[0] & f->v4[i].mask[0]) == f->v4[i].addr[0])
				return 1;
		return 0;
	}
	for (int i = 0; i < MAX_FAILSAFE && i < f->n_v6; i++)
		if ((addr[0] & f->v6[i].mask[0]) == f->v6[i].addr[0] &&
		    (addr[1] & f->v6[i].mask[1]) == f->v6[i].addr[1] &&
		    (addr[2] & f->v6[i].mask[2]) == f->v6[i].addr[2] &&
		    (addr[3] & f->v6[i].mask[3]) == f->v6[i].addr[3])
			return 1;
	return 0;
}

/* Returns the reason for which the packet passes at once, or REASON_CLEAN. */
static __always_inline enum reason failsafe(const volatile struct failsafe *f,
					    const struct packet *p)
{
	if (p->exempt) /* neighbour discovery and kinds of ICMP, by parse() */
		return p->exempt;
	if (is_dhcp(p))
		return REASON_DHCP;
	if (failsafe_port(f, p) || failsafe_prefix(f, p))
		return REASON_FAILSAFE;
	return REASON_CLEAN;
}

#endif
