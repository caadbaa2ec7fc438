package membership

import "fmt"

// Structure is a part of a set's memory.
type Structure struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
}

// Structures returns the structures that a layout consists of.
func (l *Layout) Structures() []Structure {
	var all []Structure
	add := func(bytes int, format string, args ...any) {
		if bytes > 0 {
			all = append(all, Structure{fmt.Sprintf(format, args...), bytes})
		}
	}
	p := &l.Prefixes
	lengths := make(map[uint8]bool)
	for _, g := range l.V4 {
		if !l.Hashed(g.Shape) {
			lengths[g.SrcBits+g.DstBits] = true
		}
	}
	noun := "lengths"
	if len(lengths) == 1 {
		noun = "length"
	}
	add(64*(p.Lines+p.Buckets), "quotient table of IPv4 prefixes of %d %s, %d bits an entry", len(lengths), noun, p.LaneBits)
	add(8*p.Front, "front of the quotient table")
	add(8*l.Directory.Words(), "directory of IPv4 prefixes, a word for each network /%d", l.Directory.Bits)
	add(8*l.Reach.Words(), "networks that entries reach")
	add(64*int(l.Lines), "cascade, %d bits an entry in the first line, %d in others", l.First, l.Rest)
	add(64*int(l.Buckets), "table of fingerprints")
	add(64*int(l.HotBuckets), "weights of hot elements")
	add(8*l.mark4Sides()*mark4Words, "marked IPv4 networks")
	add(64*int(l.Mark6Lines), "marked IPv6 networks")
	return all
}
