//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The program for outgoing packets, and for incoming ones where there is no XDP.
 */
#define WEIR_TC

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "pipeline.h"
#include "reject.h"

/* What passes goes on to the programs and filters behind this one. */
SEC("tc")
int weir(struct __sk_buff *ctx)
{
	if (process(ctx) != XDP_DROP)
		return TC_ACT_UNSPEC;
	return reject ? refuse(ctx) : TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
