/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the TC program leaves out: what changes or redirects frames, and policing. A
 * program that may write to packets has the kernel copy the headers of every packet
 * that is sent, since TCP keeps them.
 */
#ifndef WEIR_RECEIVE_ONLY_H
#define WEIR_RECEIVE_ONLY_H

#include "context.h"
#include "packet.h"

#define LOOP_LOOPED   1
#define POLICER_EARLY 1
#define loop_edge     0

static const struct {
	__u32 words;
} loop_node;

static const struct {
	__u32 ports;
} multicast;

static const struct {
	__u32 cost;
} policer;

static const struct {
	__u32 on;
} syncookies;

#define is_group(p)		0
#define is_multicast_frame(ctx) 0
#define check_loop(ctx, p)	((void)0)
#define carry_group(ctx)	((void)0)
#define carry_filter(ctx, p)	((void)0)
#define multicast_forward(ctx)	XDP_PASS
#define policer_admit(ctx)	0
#define opens(flags)		0
#define make_cookie(ctx)	0
#define send_cookie(ctx)	XDP_PASS

#endif
