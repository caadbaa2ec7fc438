/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Kinds of ICMP messages that may pass before any list is looked up. Routers on the way
 * send errors, and from any address: a connection whose peer is not listed stalls without
 * their "packet too big".
 */
#ifndef WEIR_ICMP_H
#define WEIR_ICMP_H

#include <linux/in.h>
#include <linux/types.h>

#include "context.h"

/* The kinds. Their Go names are in filter/packet; a test compares the two. */
#define KIND_OTHER	  0
#define KIND_ERROR	  1
#define KIND_ECHO_REQUEST 2
#define KIND_ECHO_REPLY	  3

/* 1 << kind of each that passes, as it comes in. */
volatile const __u8 failsafe_icmp = 0;

/* The kind of a message of ICMP: of ICMPv6 in a packet of IPv6 alone. */
static __always_inline __u8 icmp_kind(__u8 family, __u8 proto, __u8 type)
{
	if (family == 4 && proto == IPPROTO_ICMP)
		switch (type) {
		case 0:
			return KIND_ECHO_REPLY;
		case 3:	 /* destination unreachable, fragmentation needed */
		case 11: /* time exceeded */
		case 12: /* parameter problem */
			return KIND_ERROR;
		case 8:
			return KIND_ECHO_REQUEST;
		}
	if (family == 6 && proto == IPPROTO_ICMPV6)
		switch (type) {
		case 1: /* destination unreachable */
		case 2: /* packet too big */
		case 3: /* time exceeded */
		case 4: /* parameter problem */
			return KIND_ERROR;
		case 128:
			return KIND_ECHO_REQUEST;
		case 129:
			return KIND_ECHO_REPLY;
		}
	return KIND_OTHER;
}

/*
 * Whether a message right behind the IP header passes. Of outgoing ones, an echo request
 * asks for a reply, and passes where replies come in, and a reply where requests do; errors
 * pass in both directions, which have a path MTU each.
 */
static __always_inline int is_failsafe_icmp(__u8 family, __u8 proto, __u8 type)
{
	__u8 kind;

	if (!failsafe_icmp)
		return 0;
	kind = icmp_kind(family, proto, type);
	if (outgoing && kind == KIND_ECHO_REQUEST)
		kind = KIND_ECHO_REPLY;
	else if (outgoing && kind == KIND_ECHO_REPLY)
		kind = KIND_ECHO_REQUEST;
	return kind != KIND_OTHER && failsafe_icmp >> kind & 1;
}

#endif
