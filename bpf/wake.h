/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Wakes the control plane, which looks at trackers less often while there is little to see.
 * It asks for it by a bit in the rows of all CPUs, which programs test only where a flow
 * enters the flow memory or passes a step of a threshold.
 */
#ifndef WEIR_WAKE_H
#define WEIR_WAKE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "stats.h"

/* The bit of cpu_row's banks that asks to be woken, behind all those of banks. */
#define WAKE_BIT 63

/* The size is set by the control plane: a page. It only reads whether anything was added. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 12);
} wakes SEC(".maps");

/* Wakes it. If the buffer is full, it has been woken already. */
static __always_inline void wake(const struct cpu_row *row)
{
	__u64 nothing = 0;

	if (row->banks >> WAKE_BIT)
		bpf_ringbuf_output(&wakes, &nothing, sizeof(nothing), BPF_RB_FORCE_WAKEUP);
}

#endif
