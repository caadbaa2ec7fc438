/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The policy of a generation: what becomes of a packet that leaves for a reason.
 * The twin of filter/verdict's Policy; a test compares the two for every reason
 * under every policy.
 */
#ifndef WEIR_POLICY_H
#define WEIR_POLICY_H

#include <linux/bpf.h>

#include "packet.h"

/* Set before loading: the verifier removes what they switch off. */
volatile const __u8 drop_malformed = 0; /* 1: drop what is truncated, malformed, unparsed */
volatile const __u8 drop_looped = 0;	/* 1: drop packets in a loop; 0: only report them */
volatile const __u8 drop_not_ip = 0;	/* 1: drop what is neither IP nor ARP nor of the link */
volatile const __u8 dhcp_server = 0;	/* 1: the host serves or relays DHCP */
volatile const __u8 monitor = 0;	/* 1: count, and drop nothing */

/* XDP_PASS or XDP_DROP. */
static __always_inline int action_of(enum reason r)
{
	switch (r) {
	case REASON_BLOCKED:
	case REASON_RATE_LIMITED:
	case REASON_HEAVY:
	case REASON_POLICED:
	case REASON_PATTERN:
		return XDP_DROP; /* in monitor mode the reason is REASON_WOULD_BLOCK */
	case REASON_TRUNCATED:
	case REASON_MALFORMED:
	case REASON_UNPARSED:
		return drop_malformed && !monitor ? XDP_DROP : XDP_PASS;
	case REASON_NOT_IP:
		return drop_not_ip && !monitor ? XDP_DROP : XDP_PASS;
	case REASON_LOOPED:
		return drop_looped && !monitor ? XDP_DROP : XDP_PASS;
	case REASON_OVERTAGGED:
		return monitor ? XDP_PASS : XDP_DROP;
	default:
		return XDP_PASS;
	}
}

/* Whether such a packet is dropped, or would be if not for monitor mode. */
static __always_inline int is_unwanted(enum reason r)
{
	switch (r) {
	case REASON_WOULD_BLOCK:
	case REASON_BLOCKED:
	case REASON_RATE_LIMITED:
	case REASON_HEAVY:
	case REASON_OVERTAGGED:
	case REASON_POLICED:
	case REASON_PATTERN:
		return 1;
	case REASON_TRUNCATED:
	case REASON_MALFORMED:
	case REASON_UNPARSED:
		return drop_malformed;
	case REASON_LOOPED:
		return drop_looped;
	default:
		return 0;
	}
}

#endif
