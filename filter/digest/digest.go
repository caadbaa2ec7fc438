// Package digest records the packets that passed, to answer whether and when a
// given packet did: the Source Path Isolation Engine (SPIE) of Snoeren and
// others ("Hash-based IP traceback", SIGCOMM 2001; Broder and Mitzenmacher's survey,
// section 8.2).
//
// A packet's digest is a keyed hash of the parts that forwarding does not
// change. A Log keeps one Bloom filter of digests for each time slice. bpf/digest.h
// fills one in the kernel.
package digest

import (
	"weir/filter/hash"
	"weir/filter/invariant"
)

// Version numbers the parts of packets that digests cover. Before 3, checksums were among them.
const Version = 3

// Sum returns the digest of the IP packet pkt: the hash of its invariant part. The packet
// begins with the IP header; trailing bytes are ignored. The secret keeps others from crafting
// packets with equal digests. It returns the errors of [invariant.Append].
func Sum(s *hash.Secret, pkt []byte) (uint64, error) {
	var buf [invariant.LenV6]byte
	b, err := invariant.Append(buf[:0], pkt)
	if err != nil {
		return 0, err
	}
	return s.Sum(b), nil
}
