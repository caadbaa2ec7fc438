package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"time"
)

// The block types and options of pcapng that matter for packets. Blocks of all
// other types are passed over.
const (
	blockSection   = 0x0a0d0d0a // the same in both byte orders
	blockInterface = 1
	blockObsolete  = 2 // the packet block before there was an enhanced one
	blockSimple    = 3
	blockEnhanced  = 6

	optionEnd        = 0
	optionResolution = 9  // if_tsresol
	optionOffset     = 14 // if_tsoffset
)

// blockFrame is the size in bytes of the fields around a block's body: its type
// and its length, and its length again.
const blockFrame = 12

// maxInterfaces bounds the memory that a section's interfaces may take.
const maxInterfaces = 1 << 16

// pcapng is the block format: sections, each with its own byte order and
// interfaces, each of those with its own link type and clock.
type pcapng struct {
	order      binary.ByteOrder
	interfaces []ngInterface
	left       int // bytes of the current block's body that are not yet read
}

// ngInterface describes an interface of a section.
type ngInterface struct {
	link   linkType
	snap   uint32 // most bytes captured of a packet, 0 for no limit
	rate   uint64 // timestamp units in a second
	offset int64  // seconds to add to timestamps
}

// newPcapng reads the section header that every pcapng file begins with.
func newPcapng(in *input) (*pcapng, error) {
	f := &pcapng{order: binary.LittleEndian}
	if _, _, err := f.block(in); err != nil {
		return nil, fmt.Errorf("section header: %w", cutShort(err))
	}
	return f, nil
}

func (f *pcapng) next(in *input) (record, error) {
	for {
		if rec, found, err := f.block(in); found || err != nil {
			return rec, err
		}
	}
}

// block reads one block. It returns the packet in it, if there is one, and
// io.EOF where there is no further block.
func (f *pcapng) block(in *input) (rec record, found bool, err error) {
	in.begin = in.offset
	h, err := in.take(8)
	if err != nil {
		return record{}, false, err
	}
	kind, size := f.order.Uint32(h), [4]byte(h[4:])
	read := 8
	if kind == blockSection {
		// It states the byte order in which its own length is written.
		if err := f.byteOrder(in); err != nil {
			return record{}, false, err
		}
		read += 4
	}
	total := f.order.Uint32(size[:])
	if total < blockFrame || int(total) < read+4 || total%4 != 0 {
		return record{}, false, fmt.Errorf("a block of %d bytes", total)
	}
	f.left = int(total) - read - 4

	switch kind {
	case blockSection:
		err = f.section(in)
	case blockInterface:
		err = f.addInterface(in)
	case blockEnhanced, blockObsolete:
		found = true
		rec, err = f.packet(in, kind)
	case blockSimple:
		found = true
		rec, err = f.simplePacket(in)
	}
	if err == nil {
		err = in.skip(f.left)
	}
	if err != nil {
		return record{}, false, err
	}
	end, err := in.inside(4)
	if err != nil {
		return record{}, false, err
	}
	if [4]byte(end) != size {
		return record{}, false, fmt.Errorf("a block of %d bytes ends as one of %d", total, f.order.Uint32(end))
	}
	return rec, found, nil
}

// byteOrder reads the byte-order magic of a section header.
func (f *pcapng) byteOrder(in *input) error {
	magic, err := in.inside(4)
	if err != nil {
		return err
	}
	switch string(magic) {
	case "\x4d\x3c\x2b\x1a":
		f.order = binary.LittleEndian
	case "\x1a\x2b\x3c\x4d":
		f.order = binary.BigEndian
	default:
		return fmt.Errorf("no byte order: % x", magic)
	}
	return nil
}

// body takes the next n bytes of the current block.
func (f *pcapng) body(in *input, n int) ([]byte, error) {
	if n > f.left {
		return nil, errors.New("a block too short for its content")
	}
	f.left -= n
	return in.inside(n)
}

// section reads a section header's body. It ends the section before.
func (f *pcapng) section(in *input) error {
	b, err := f.body(in, 12)
	if err != nil {
		return err
	}
	// 1.2 was written by mistake and is read as 1.0.
	if major, minor := f.order.Uint16(b), f.order.Uint16(b[2:]); major != 1 || minor != 0 && minor != 2 {
		return fmt.Errorf("pcapng version %d.%d is not supported", major, minor)
	}
	f.interfaces = f.interfaces[:0]
	return nil
}

// addInterface reads the description of the section's next interface. Options
// of a wrong size are ignored.
func (f *pcapng) addInterface(in *input) error {
	if len(f.interfaces) == maxInterfaces {
		return fmt.Errorf("more than %d interfaces", maxInterfaces)
	}
	b, err := f.body(in, 8)
	if err != nil {
		return err
	}
	ifc := ngInterface{
		link: linkType(f.order.Uint16(b)),
		snap: f.order.Uint32(b[4:]),
		rate: 1e6,
	}
	for f.left >= 4 {
		b, err := f.body(in, 4)
		if err != nil {
			return err
		}
		code, n := f.order.Uint16(b), int(f.order.Uint16(b[2:]))
		if code == optionEnd {
			break
		}
		value, err := f.body(in, (n+3)&^3)
		if err != nil {
			return err
		}
		switch {
		case code == optionResolution && n == 1:
			if ifc.rate, err = clockRate(value[0]); err != nil {
				return err
			}
		case code == optionOffset && n == 8:
			ifc.offset = int64(f.order.Uint64(value))
		}
	}
	f.interfaces = append(f.interfaces, ifc)
	return nil
}

// clockRate returns the units in a second of a timestamp resolution: a negative
// power of two where the top bit is set, otherwise of ten.
func clockRate(resolution byte) (uint64, error) {
	base, exponent := uint64(10), resolution
	if resolution&0x80 != 0 {
		base, exponent = 2, resolution&0x7f
	}
	rate := uint64(1)
	for range exponent {
		high, low := bits.Mul64(rate, base)
		if high != 0 {
			return 0, fmt.Errorf("a timestamp resolution of %d^-%d seconds", base, exponent)
		}
		rate = low
	}
	return rate, nil
}

// time converts a timestamp of the interface. It returns the zero time for a year that JSON cannot
// express in all time zones, as for no timestamp.
func (ifc *ngInterface) time(stamp uint64) time.Time {
	// The quotient fits, because the remainder is below the rate.
	high, low := bits.Mul64(stamp%ifc.rate, 1e9)
	nanoseconds, _ := bits.Div64(high, low, ifc.rate)
	t := time.Unix(int64(stamp/ifc.rate)+ifc.offset, int64(nanoseconds)).UTC()
	if year := t.Year(); year < 1 || year > 9998 {
		return time.Time{}
	}
	return t
}

// packet reads an enhanced packet block or an obsolete one.
func (f *pcapng) packet(in *input, kind uint32) (record, error) {
	b, err := f.body(in, 20)
	if err != nil {
		return record{}, err
	}
	id := f.order.Uint32(b)
	if kind == blockObsolete {
		id = uint32(f.order.Uint16(b)) // a count of drops follows
	}
	stamp := uint64(f.order.Uint32(b[4:]))<<32 | uint64(f.order.Uint32(b[8:]))
	return f.record(in, id, &stamp, f.order.Uint32(b[12:]), f.order.Uint32(b[16:]))
}

// simplePacket reads a simple packet block: of the first interface, without a
// time, and captured as far as the interface's limit goes.
func (f *pcapng) simplePacket(in *input) (record, error) {
	b, err := f.body(in, 4)
	if err != nil {
		return record{}, err
	}
	length := f.order.Uint32(b)
	captured := length
	if len(f.interfaces) > 0 && f.interfaces[0].snap != 0 {
		captured = min(captured, f.interfaces[0].snap)
	}
	return f.record(in, 0, nil, captured, length)
}

// record reads the captured bytes of a packet of interface id. Without a stamp
// the packet has no time.
func (f *pcapng) record(in *input, id uint32, stamp *uint64, captured, length uint32) (record, error) {
	if uint64(id) >= uint64(len(f.interfaces)) {
		return record{}, fmt.Errorf("interface %d of %d", id, len(f.interfaces))
	}
	if uint64(captured) > uint64(f.left) {
		return record{}, fmt.Errorf("a packet of %d bytes in a block with %d left", captured, f.left)
	}
	ifc := &f.interfaces[id]
	rec := record{link: ifc.link, length: int(length)}
	if stamp != nil {
		rec.time = ifc.time(*stamp)
	}
	var err error
	rec.data, err = in.packet(captured)
	f.left -= int(captured)
	return rec, err
}
