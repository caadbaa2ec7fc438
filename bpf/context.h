/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the two entries differ in: where a packet, its length and its direction come
 * from. XDP has frames as they come off the wire. TC has the socket buffers of the
 * network stack: of outgoing packets, and of those that come in by an interface
 * without XDP. A buffer may be longer than a packet on the wire, which is cut from it
 * later (GSO), its checksums may be missing, and the outermost VLAN tag may lie beside
 * the frame, where the NIC will insert it or has found it.
 */
#ifndef WEIR_CONTEXT_H
#define WEIR_CONTEXT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

#ifdef WEIR_TC

#define context __sk_buff

volatile const __u8 outgoing =
	0; /* 1: the packets leave the host; the remote side is the destination */
volatile const __u8 reject =
	0; /* 1: TCP that programs on this host send and that is dropped is refused */
/*
 * 1: packets have no link header, as in tunnels. Their offsets count from the IP header,
 * since what some devices leave before it is a header of the tunnel.
 */
volatile const __u8 no_link_header = 0;

/* The VLAN tags that are not in the frame. */
static __always_inline __u32 tags_beside(struct context *ctx)
{
	return ctx->vlan_present != 0;
}

/* Bytes of the frame on the wire that lie beside it. */
static __always_inline __u32 bytes_beside(struct context *ctx)
{
	return ctx->vlan_present ? 4 : 0;
}

static __always_inline __u32 buffer_length(struct context *ctx)
{
	return ctx->len;
}

/* The length of a frame that the lean path takes, with what lies beside it. */
static __always_inline __u32 length_of(struct context *ctx)
{
	return ctx->len + bytes_beside(ctx);
}

static __always_inline __u32 interface_of(struct context *ctx)
{
	return ctx->ifindex;
}

/* The EtherType of a frame without a link header. */
static __always_inline __be16 protocol_of(struct context *ctx)
{
	return ctx->protocol;
}

#define PULLED 2048 /* bytes: more than all headers */

/* Returns 0, or an error where the frame ends before. */
static __always_inline long load_bytes(struct context *ctx, __u32 at, void *to, __u32 size)
{
	__u32 len = ctx->len;

	if (!no_link_header)
		return bpf_skb_load_bytes(ctx, at, to, size);
	if (!bpf_skb_load_bytes_relative(ctx, at, to, size, BPF_HDR_START_NET))
		return 0;
	/* This helper does not look beyond the first buffer. */
	if (bpf_skb_pull_data(ctx, len < PULLED ? len : PULLED))
		return -1;
	return bpf_skb_load_bytes_relative(ctx, at, to, size, BPF_HDR_START_NET);
}

#else

#define context xdp_md

#define outgoing	   0
#define reject		   0
#define no_link_header	   0
#define tags_beside(ctx)   0
#define bytes_beside(ctx)  0
#define protocol_of(ctx)   0
#define buffer_length(ctx) bpf_xdp_get_buff_len(ctx)
#define length_of(ctx)	   ((ctx)->data_end - (ctx)->data)
#define interface_of(ctx)  ((ctx)->ingress_ifindex)
#define load_bytes	   bpf_xdp_load_bytes

#endif

#endif
