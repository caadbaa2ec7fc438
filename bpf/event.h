/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Events: a sample of the packets that match a list, have a penalty or cannot be
 * parsed goes to a ring buffer, with the beginning of the frame. The control plane
 * sets the sampling rates in memory that it maps, and may change them at any time.
 */
#ifndef WEIR_EVENT_H
#define WEIR_EVENT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "context.h"
#include "packet.h"
#include "stats.h"

#define EVENT_FRAME 256

/* Sampling expires, as penalties do, so a dead control plane costs nothing. */
struct sampling {
	__u64 until; /* of CLOCK_MONOTONIC, in ns */
	__u32 snap;  /* bytes of a frame, at most EVENT_FRAME */
	__u32 first; /* 1: flows that are new have events, where they are looked for */
	/* By reason: one packet in this many, a power of two; 0: none. */
	__u32 one_in[MAX_REASONS + 3];
};

struct event {
	__u64 time; /* of CLOCK_MONOTONIC, in ns */
	__u32 ifindex;
	__u32 one_in;	/* the sampling rate: one packet in this many */
	__u32 captured; /* bytes of the frame that follow */
	__u32 first;	/* the importance of a flow that is new, or 0 */
	struct packet packet;
	__u8 frame[EVENT_FRAME];
};

_Static_assert(sizeof(struct sampling) == 128, "two cache lines");
_Static_assert(sizeof(struct event) % 8 == 0, "the unit of the ring buffer");

KEPT_ADDRESSED_ARRAY(sampling_now, struct sampling);

/* About 1500 events: 150 ms at the highest rate that the control plane sets. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 19);
} events SEC(".maps") KEPT;

#define TAG_OFFSET (2 * ETH_ALEN)

/* Writes the VLAN tag that lies beside the frame to where it is on the wire. */
static __always_inline void write_tag(struct context *ctx, struct event *e)
{
#ifdef WEIR_TC
	__u16 proto = bpf_ntohs(ctx->vlan_proto), tci = ctx->vlan_tci;

	e->packet.network += 4;
	e->frame[TAG_OFFSET] = proto >> 8;
	e->frame[TAG_OFFSET + 1] = proto;
	e->frame[TAG_OFFSET + 2] = tci >> 8;
	e->frame[TAG_OFFSET + 3] = tci;
#endif
}

/*
 * Copies the beginning of a frame, snap bytes at most, and returns how many there are.
 * Bytes in further buffers are left out.
 */
static __always_inline __u32 copy_frame(struct context *ctx, struct event *e, __u32 snap)
{
	__u8 *pos = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 n = 0, beside = bytes_beside(ctx);

	/* By words, as long as there are, then by bytes. */
	for (; n + 4 <= snap && pos + n + 4 <= end; n += 4) {
		__u32 to = n < TAG_OFFSET ? n : n + beside;

		if (to + 4 > EVENT_FRAME)
			break;
		*(__u32 *)(e->frame + to) = *(const __u32 *)(pos + n);
	}
	n = forget(&e->packet, n) & (2 * EVENT_FRAME - 1);
	for (int i = 0; i < 3 && n < snap && pos + n + 1 <= end; i++, n++) {
		__u32 to = n < TAG_OFFSET ? n : n + beside;

		asm volatile("" : "+r"(to)); /* so that the index itself is compared */
		if (to >= EVENT_FRAME)
			break;
		e->frame[to] = pos[n];
	}
	if (beside && n >= TAG_OFFSET) {
		write_tag(ctx, e);
		n += beside;
	}
	return n;
}

/*
 * The same of a packet without a link header, from the IP header on. Where it ends, its own
 * length says: that of the buffer may count a header of the tunnel.
 */
static __always_inline __u32 copy_packet(struct context *ctx, struct event *e, __u32 snap)
{
	__u32 n = e->packet.len, total;
	__u8 ip[6];

	if (!snap || load_bytes(ctx, 0, ip, sizeof(ip)))
		return 0;
	total = ip[0] >> 4 == 4 ? ip[2] << 8 | ip[3]
				: sizeof(struct ipv6hdr) + (ip[4] << 8 | ip[5]);
	if (n > total && total)
		n = total;
	if (n > EVENT_FRAME)
		n = EVENT_FRAME;
	if (n < sizeof(struct iphdr)) /* not 1, which is no bound to the verifier of Linux 5.10 */
		n = sizeof(struct iphdr);
	if (!load_bytes(ctx, 0, e->frame, n))
		return n;
	n = sizeof(struct iphdr); /* it is damaged */
	return load_bytes(ctx, 0, e->frame, n) ? 0 : n;
}

/*
 * Emits an event of this CPU's packet. A global function, so that the verifier
 * checks the copying once. The kernel wakes a reader that has read everything, so that in
 * a flood few events do. first: the importance of its flow, if that
 * is new and the event says so.
 */
__noinline int emit_event(struct context *ctx, __u32 one_in, __u32 first)
{
	struct sampling *s = AT(sampling_now, 0);
	struct cpu_row *row = this_row();
	struct event *e;
	__u64 now;

	if (!s || !row) /* impossible */
		return 0;
	now = bpf_ktime_get_ns();
	if (now >= s->until)
		return 0;
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		row->events_lost += 1;
		return 0;
	}
	e->time = now;
	e->ifindex = interface_of(ctx);
	e->one_in = one_in;
	e->first = first;
	__builtin_memcpy(&e->packet, &row->packet, sizeof(e->packet));
	e->captured = no_link_header ? copy_packet(ctx, e, s->snap) : copy_frame(ctx, e, s->snap);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

volatile const __u8 sample_clean = 0; /* 1: packets that match nothing have events, too */

/* Packets that pass before any list have no events. */
static __always_inline void sample(struct context *ctx, struct cpu_row *row, const struct packet *p)
{
	__u32 r = p->reason, one_in;
	struct sampling *s;

	if (r == REASON_CLEAN ? !sample_clean
			      : r < REASON_ALLOWED || r == REASON_LINK || r >= REASON_COUNT)
		return;
	s = AT(sampling_now, 0);
	one_in = s ? s->one_in[r] : 0;
	if (!one_in || (one_in > 1 && bpf_get_prandom_u32() & (one_in - 1)))
		return;
	keep(row, p);
	emit_event(ctx, one_in, 0);
}

#endif
