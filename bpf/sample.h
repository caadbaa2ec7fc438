/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Samples of the packets that a list has matched: where no table confirms
 * what the cascade says, the control plane judges these, and so measures the
 * false positives.
 */
#ifndef WEIR_SAMPLE_H
#define WEIR_SAMPLE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "packet.h"

/* Records are struct packet. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} samples SEC(".maps");

volatile const __u8 sampling = 0;
volatile const __u32 sample_mask = 0; /* one packet in sample_mask + 1, a power of two */

static __always_inline void sample(const struct packet *p)
{
	if (!sampling || (p->reason != REASON_BLOCKED && p->reason != REASON_MONITORED))
		return;
	if (bpf_get_prandom_u32() & sample_mask)
		return;
	/* Fails while the buffer is full; it is only a sample. */
	bpf_ringbuf_output(&samples, (void *)p, sizeof(*p), BPF_RB_NO_WAKEUP);
}

#endif
