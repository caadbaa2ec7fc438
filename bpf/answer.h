/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The headers of packets that programs make in answer to a TCP packet.
 */
#ifndef WEIR_ANSWER_H
#define WEIR_ANSWER_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "packet.h"

#define TCP_WORDS 5 /* of a header without options */
#define HOP_LIMIT 64

/* The Internet checksum of a sum of words. */
static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Sets the checksum of the TCP header that answers a packet, of a length in bytes. */
static __always_inline void set_checksum(const struct packet *p, __u32 *tcp, __u32 bytes)
{
	__u32 addresses[8] = {p->src[0], p->dst[0]};
	__u32 rest = bpf_htonl(IPPROTO_TCP << 16 | bytes);
	__u32 sum;

	tcp[4] = 0;
	for (int i = 0; i < 4 && p->family == 6; i++) {
		addresses[i] = p->src[i];
		addresses[4 + i] = p->dst[i];
	}
	sum = bpf_csum_diff(0, 0, &rest, sizeof(rest), 0);
	sum = bpf_csum_diff(0, 0, addresses, sizeof(addresses), sum);
	sum = bpf_csum_diff(0, 0, tcp, bytes, sum);
	*(__u16 *)&tcp[4] = fold(sum);
}

/* Makes the IPv4 header of the answer to a packet, whose TCP has a length in bytes. */
static __always_inline void answer_v4(const struct packet *p, __u32 *ip, __u32 bytes)
{
	ip[0] = bpf_htonl(0x45000000 | (sizeof(struct iphdr) + bytes));
	ip[1] = bpf_htonl(0x4000); /* not to be fragmented */
	ip[2] = bpf_htonl(HOP_LIMIT << 24 | IPPROTO_TCP << 16);
	ip[3] = p->dst[0];
	ip[4] = p->src[0];
	((__u16 *)ip)[5] = fold(bpf_csum_diff(0, 0, ip, sizeof(struct iphdr), 0));
}

/* The same of IPv6. */
static __always_inline void answer_v6(const struct packet *p, __u32 *ip, __u32 bytes)
{
	ip[0] = bpf_htonl(0x60000000);
	ip[1] = bpf_htonl(bytes << 16 | IPPROTO_TCP << 8 | HOP_LIMIT);
	__builtin_memcpy(ip + 2, p->dst, sizeof(p->dst));
	__builtin_memcpy(ip + 6, p->src, sizeof(p->src));
}

#endif
