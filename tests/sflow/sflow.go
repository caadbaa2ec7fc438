// Package sflow reads samples of sFlow as version 5 and its collection of structures describe them, and nothing else.
package sflow

import "encoding/binary"

// Lists returns the packets in the samples of datagrams by their lists, "" for none: by the names of extended ACLs.
func Lists(datagrams ...[]byte) map[string]uint64 {
	const flowSample, extendedACL = 3, 1037
	u32 := binary.BigEndian.Uint32
	all := make(map[string]uint64)
	for _, b := range datagrams {
		for b = b[28:]; len(b) > 0; { // behind the header of an agent of IPv4
			kind, sample := u32(b), b[8:8+u32(b[4:])]
			b = b[8+len(sample):]
			if kind != flowSample {
				continue
			}
			list := ""
			for records := sample[44:]; len(records) > 0; {
				kind, record := u32(records), records[8:8+u32(records[4:])]
				records = records[8+len(record):]
				if kind == extendedACL {
					list = string(record[8 : 8+u32(record[4:])])
				}
			}
			all[list]++
		}
	}
	return all
}
