/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Events: of the packets that some list, penalty or complaint is about, as many
 * as the control plane asks for are told in a ring buffer, with the beginning of
 * the frame. What it asks for stands in memory that it maps, so that it can
 * change at any time.
 */
#ifndef WEIR_EVENT_H
#define WEIR_EVENT_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "array.h"
#include "packet.h"
#include "stats.h"

#define EVENT_FRAME 256

/*
 * What is asked for. It ends by the clock, as penalties do: when the control
 * plane dies, no packet is told to nobody.
 */
struct sampling {
	__u64 until; /* of CLOCK_MONOTONIC, in ns */
	__u32 snap;  /* bytes of a frame, EVENT_FRAME at most */
	__u32 pad;
	/* By reason: one packet in so many, a power of two; 0: none. */
	__u32 one_in[MAX_REASONS + 1];
};

struct event {
	__u64 time; /* of CLOCK_MONOTONIC, in ns */
	__u32 ifindex;
	__u32 one_in;	/* of so many packets this is one */
	__u32 captured; /* bytes of the frame that are here */
	__u32 pad;
	struct packet packet;
	__u8 frame[EVENT_FRAME];
};

_Static_assert(sizeof(struct sampling) == 128, "two cache lines");
_Static_assert(sizeof(struct event) % 8 == 0, "the ring buffer's unit");

ARRAY(sampling_now, struct sampling);

/* Some 1500 events: those of 150 ms at the rate that the control plane allows. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 19);
} events SEC(".maps");

/*
 * Tells of this CPU's packet. A global function, so that the kernel verifies the
 * copying once. It wakes nobody, which would cost more than all the rest: the
 * control plane looks often enough.
 */
__noinline int emit_event(struct xdp_md *ctx, __u32 one_in)
{
	__u8 *pos = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0, n = 0;
	struct sampling *s = bpf_map_lookup_elem(&sampling_now, &zero);
	struct cpu_row *row = this_row();
	struct event *e;
	__u64 now;

	if (!s || !row) /* cannot be */
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
	e->ifindex = ctx->ingress_ifindex;
	e->one_in = one_in;
	e->pad = 0;
	__builtin_memcpy(&e->packet, &row->packet, sizeof(e->packet));
	/* What lies in further buffers is left out. */
	for (; n < EVENT_FRAME && n < s->snap && pos + n + 1 <= end; n++)
		e->frame[n] = pos[n];
	e->captured = n;
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	return 0;
}

/* What passes before any list, or because nothing is wrong with it, is no event. */
static __always_inline void sample(struct xdp_md *ctx, enum reason r)
{
	__u32 zero = 0, one_in;
	struct sampling *s;

	if (r < REASON_ALLOWED || r >= REASON_COUNT)
		return;
	s = bpf_map_lookup_elem(&sampling_now, &zero);
	one_in = s ? s->one_in[r] : 0;
	if (!one_in || (one_in > 1 && bpf_get_prandom_u32() & (one_in - 1)))
		return;
	emit_event(ctx, one_in);
}

#endif
