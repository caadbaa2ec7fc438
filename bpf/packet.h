/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A packet as the stages see it, and the reasons for which it can leave.
 */
#ifndef WEIR_PACKET_H
#define WEIR_PACKET_H

#include <linux/types.h>

/*
 * Why a packet left. Each packet is counted under exactly one reason. The Go
 * names are in filter/verdict; a test compares the two. New reasons go to the end,
 * because counters are adopted by number.
 */
enum reason {
	REASON_CLEAN,	     /* pass: nothing listed matches */
	REASON_NOT_IP,	     /* configurable: neither IP nor ARP nor of the link itself */
	REASON_ARP,	     /* pass: before any list */
	REASON_ND,	     /* pass: before any list */
	REASON_DHCP,	     /* pass: before any list */
	REASON_FAILSAFE,     /* pass: a failsafe port, prefix or kind of ICMP */
	REASON_ALLOWED,	     /* pass: would be dropped, but an allow list matches */
	REASON_WOULD_BLOCK,  /* pass: would be blocked, if not for monitor mode */
	REASON_BLOCKED,	     /* drop: a block list matches */
	REASON_TRUNCATED,    /* configurable: the packet ends within a header */
	REASON_MALFORMED,    /* configurable: a header contradicts itself */
	REASON_UNPARSED,     /* configurable: more headers than are followed */
	REASON_RATE_LIMITED, /* drop: over the rate limit of a heavy hitter */
	REASON_HEAVY,	     /* drop: of a heavy hitter that is blocked */
	REASON_LOOPED,	     /* configurable: in a forwarding loop */
	REASON_OVERTAGGED,   /* drop: a listed packet could hide behind this many tags or labels */
	REASON_LINK,	     /* pass: a protocol of the link itself */
	REASON_POLICED,	     /* drop: over the rate of the interface */
	REASON_REPLY,	     /* pass: would be blocked, but answers a connection of this host */
	REASON_PATTERN, /* drop: a pattern of header fields matches, and its rate is exceeded */
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
	__u32 open;  /* the gates that its marks open; scratch memory, see forget() */
	__u32 reason;
	__s32 list;  /* the match in the set looked up last; decide() settles it */
	__u8 family; /* 4, 6, or 0: no addresses to match */
	__u8 proto;
	__u8 has_ports; /* of a protocol with ports, not a later fragment */
	__u8 plain;	/* not a fragment, and no extension headers: may be exempt by its ports */
	__u32 punished; /* the reason to drop it for the penalty of its flow, or 0 */
	__u8 network;	/* offset of the IP header in the frame, in bytes */
	__u8 loop;	/* the result of the loop check: enum loop_outcome */
	__u8 exempt;	/* the reason to pass before any list, or 0 */
	__u8 encapsulated; /* IN_LINK, IN_TUNNEL */
};

#define IN_LINK	  1 /* in PPPoE or MPLS */
#define IN_TUNNEL 2 /* the addresses come from a header in a tunnel: see inner.h */

_Static_assert(sizeof(struct packet) == 64, "a packet is one cache line");

/*
 * The packet lies in map memory, whose contents the verifier does not track. A
 * barrier() behind a stage that wrote to it makes the next one read it anew:
 * otherwise the verifier would walk the rest of the program once for each way in
 * which the stage can end, and a program with many shapes would exceed its limits.
 */

/*
 * Returns the number, by way of p->open, so that the verifier does not know it and does not
 * walk the rest of the program once for each.
 */
static __always_inline __u32 forget(struct packet *p, __u32 number)
{
	p->open = number;
	barrier();
	return p->open;
}

/*
 * Makes the verifier save its state here, so that it can prune another path that
 * arrives in an equal state. In a loop it does so only after 20 jumps or 100
 * instructions, and the paths through an iteration would multiply with those
 * through the next. These jumps do nothing; the kernel removes them.
 */
static __always_inline void checkpoint(void)
{
	asm volatile(".rept 20\n\tgoto +0\n\t.endr");
}

#endif
