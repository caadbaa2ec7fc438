//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The program that weir attaches to an interface, and the one for each interface to
 * which multicast packets are copied.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "pipeline.h"

SEC("xdp.frags")
int weir(struct xdp_md *ctx)
{
	return process(ctx);
}

SEC("xdp.frags/devmap")
int weir_egress(struct xdp_md *ctx)
{
	return multicast_send(ctx);
}

/* Adds these types to the object's BTF, from which the Go types are generated. */
const enum reason *reasons __attribute__((unused));
const enum tunnel *tunnels __attribute__((unused));
const enum loop_outcome *loop_outcomes __attribute__((unused));
const enum policer_outcome *policer_outcomes __attribute__((unused));
const enum policer_controller *policer_controllers __attribute__((unused));
const struct event *event_type __attribute__((unused));

char LICENSE[] SEC("license") = "Dual BSD/GPL";
