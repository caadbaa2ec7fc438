//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The program that weir attaches to an interface. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "pipeline.h"

SEC("xdp.frags")
int weir(struct xdp_md *ctx)
{
	return verdict(run_pipeline(ctx));
}

/* Puts these into the object's BTF, where Go finds them. */
const enum reason *reasons __attribute__((unused));
const struct event *told __attribute__((unused));

char LICENSE[] SEC("license") = "Dual BSD/GPL";
