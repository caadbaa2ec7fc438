package capture

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Sizes in bytes of the header of a pcap file and of each packet in it.
const (
	pcapHeader       = 24
	pcapPacketHeader = 16
)

// pcap is the classic format: one header, then packets of one link type.
type pcap struct {
	order binary.ByteOrder
	unit  int64 // nanoseconds in one unit of a timestamp's fraction
	link  linkType
}

// newPcap reads the file header, magic number included, and refuses link types
// that cannot become Ethernet.
func newPcap(in *input, order binary.ByteOrder, unit int64) (*pcap, error) {
	h, err := in.inside(pcapHeader)
	if err != nil {
		return nil, fmt.Errorf("file header: %w", err)
	}
	// Before 2.4 the two lengths of a packet were swapped, or not, by writer.
	if major, minor := order.Uint16(h[4:]), order.Uint16(h[6:]); major != 2 || minor != 4 {
		return nil, fmt.Errorf("pcap version %d.%d is not supported", major, minor)
	}
	// The snapshot length (h[16:]) is left alone: many writers do not keep it.
	// The six high bits of the last word describe frame check sequences.
	link := linkType(order.Uint32(h[20:]) & 0x03ffffff)
	if _, ok := framings[link]; !ok {
		return nil, linkError{link}
	}
	return &pcap{order, unit, link}, nil
}

func (f *pcap) next(in *input) (record, error) {
	in.begin = in.offset
	h, err := in.take(pcapPacketHeader)
	if err != nil {
		return record{}, err
	}
	rec := record{
		time:   time.Unix(int64(f.order.Uint32(h)), int64(f.order.Uint32(h[4:]))*f.unit).UTC(),
		link:   f.link,
		length: int(f.order.Uint32(h[12:])),
	}
	rec.data, err = in.packet(f.order.Uint32(h[8:]))
	return rec, err
}
