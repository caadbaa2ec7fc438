/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the stages know of a packet, and the reasons with which it can leave.
 */
#ifndef WEIR_PACKET_H
#define WEIR_PACKET_H

#include <linux/types.h>

/*
 * Why a packet left. Each packet is counted under just one reason. The Go
 * names are in filter/verdict; a test holds the two together. New reasons go
 * to the end: counters that are adopted go by the number.
 */
enum reason {
	REASON_CLEAN,	   /* pass: nothing listed matches */
	REASON_NOT_IP,	   /* pass: an EtherType that weir does not filter */
	REASON_ARP,	   /* pass: before any list */
	REASON_ND,	   /* pass: before any list */
	REASON_DHCP,	   /* pass: before any list */
	REASON_FAILSAFE,   /* pass: a failsafe port or prefix */
	REASON_ALLOWED,	   /* pass: it would be dropped, but an allow list holds it */
	REASON_MONITORED,  /* pass: would be blocked, but weir only watches */
	REASON_BLOCKED,	   /* drop: a block list holds it */
	REASON_TRUNCATED,  /* configurable: the packet ends within a header */
	REASON_MALFORMED,  /* configurable: a header contradicts itself */
	REASON_UNPARSED,   /* configurable: more headers than weir follows */
	REASON_LIMITED,	   /* drop: over the rate that is left to a heavy flow */
	REASON_HEAVY,	   /* drop: of a flow that is blocked for being heavy */
	REASON_LOOPED,	   /* configurable: it goes round in a circle */
	REASON_OVERTAGGED, /* drop: what is listed could hide behind so many VLAN tags */
	REASON_COUNT,
};

/*
 * Addresses and ports are in network order, as they were loaded from the
 * packet; an IPv4 address is in word 0.
 */
struct packet {
	__u32 src[4];
	__u32 dst[4];
	__u32 ports; /* source port, then destination port, as on the wire */
	__u32 len;   /* of the whole frame, in bytes */
	__u32 open;  /* the gates of shapes that its marks open */
	__u32 reason;
	__s32 list;  /* what the last set that was asked has answered */
	__u8 family; /* 4, 6, or 0: there are no addresses to match */
	__u8 proto;
	__u8 has_ports; /* TCP, UDP or SCTP, not a later fragment */
	__u8 nd;	/* IPv6 neighbour discovery */
	__u32 punished; /* the reason to drop it for a heavy flow that it is of, or 0 */
	__u8 network;	/* where the IP header begins, in bytes from the frame's start */
	__u8 loop;	/* what its loop filter tells: enum loop_outcome */
	__u8 pad[2];
};

_Static_assert(sizeof(struct packet) == 64, "a packet is one cache line");

/*
 * The packet lies in map memory, whose contents the verifier does not track. A
 * barrier() behind a stage that wrote to it makes the next one read it anew:
 * otherwise the verifier would walk the rest of the program once for each way in
 * which the stage can end, and a program with many shapes would exceed its limits.
 */

/*
 * Makes the verifier remember here where it has been, so that another way that
 * leads here ends. In a loop it does so only after 20 jumps or 100 instructions,
 * and the ways through an iteration would multiply with those through the next.
 * These jumps lead nowhere; the kernel removes them from the program.
 */
static __always_inline void checkpoint(void)
{
	asm volatile(".rept 20\n\tgoto +0\n\t.endr");
}

#endif
