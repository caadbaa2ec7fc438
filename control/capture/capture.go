// Package capture reads packet captures as Ethernet frames, and writes them.
//
// A capture is pcap (microseconds or nanoseconds, either byte order) or
// pcapng, plain or compressed with gzip or zstd. All of that is recognised by
// the first bytes, never by the name. Raw IP and Linux cooked packets are
// given an Ethernet header, so that callers see one link layer only; other
// link types are refused.
//
// What is written is pcapng.
//
// Captures come from anywhere and may be damaged or hostile: whatever they
// say, a Reader's memory is bounded. It holds one packet of at most [MaxPacket]
// bytes, some bytes for each pcapng interface, and the decompressor's window.
package capture

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"time"

	"weir/control/compressed"
)

// MaxPacket is the most bytes that a packet in a capture may have: the largest
// snapshot length that libpcap grants. More is an error, for it is garbage far
// more often than a packet.
const MaxPacket = 256 << 10

// ErrTruncated is wrapped by the error for a capture that ends inside a packet
// or inside a header, as captures do that are still being written. The packets
// before were good.
var ErrTruncated = errors.New("cut short")

// Packet is one captured packet.
type Packet struct {
	// Number counts the packets of the capture from 1.
	Number int
	// Time is when the packet was captured, in UTC. It is zero where the
	// capture does not say.
	Time time.Time
	// Data is the Ethernet frame as far as it was captured. It is valid until
	// the next call of [Reader.Next], and may be empty.
	Data []byte
	// Length is the frame's size on the wire in bytes, at least len(Data).
	Length int
}

// Reader reads the packets of one capture in order. It is not safe for
// concurrent use.
type Reader struct {
	name   string
	in     input
	format format
	count  int   // packets given
	err    error // why there are no more packets
	close  []func() error
}

// format finds the records of one kind of capture file. Its state comes from
// the file's headers.
type format interface {
	// next reads the next packet. It returns io.EOF where the capture ends
	// properly, and keeps in.begin at the place that an error is about.
	next(in *input) (record, error)
}

// record is a packet as a capture file holds it.
type record struct {
	time   time.Time
	link   linkType
	data   []byte // headroom bytes to write into, then the captured bytes
	length int    // bytes on the wire, as the file claims
}

// Open opens the capture at path; "-" is standard input. The caller closes the
// Reader. It returns the errors of [NewReader] and of opening the file.
func Open(path string) (*Reader, error) {
	if path == "-" {
		return NewReader("standard input", os.Stdin)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	r, err := NewReader(path, f)
	if err != nil {
		f.Close()
		return nil, err
	}
	r.close = append(r.close, f.Close)
	return r, nil
}

// NewReader reads the capture's header from src and returns a Reader for its
// packets. Errors call the capture by name.
//
// The error wraps [ErrTruncated] where src ends within the header, and
// [errors.ErrUnsupported] where the whole capture has a link type that cannot
// be read as Ethernet.
func NewReader(name string, src io.Reader) (*Reader, error) {
	r := &Reader{name: name}
	if err := r.start(src); err != nil {
		r.Close()
		return nil, fmt.Errorf("capture: %s: %w", name, err)
	}
	return r, nil
}

// start finds out compression and format of src and reads the file header.
func (r *Reader) start(src io.Reader) error {
	in, err := compressed.NewReader(src)
	if err != nil {
		return cutShort(err)
	}
	r.close = append(r.close, func() error { in.Close(); return nil })
	r.in.Reader = in.Reader
	r.format, err = newFormat(&r.in)
	return err
}

// Next returns the next packet, and [io.EOF] after the last one.
//
// Any other error names the packet and the place, in bytes of the uncompressed
// capture, and ends the reading: later calls return it again. It wraps
// [ErrTruncated] where the capture ends inside a packet, and
// [errors.ErrUnsupported] where the packet has a link type that cannot be read
// as Ethernet.
func (r *Reader) Next() (Packet, error) {
	if r.err != nil {
		return Packet{}, r.err
	}
	rec, err := r.format.next(&r.in)
	if err == io.EOF {
		r.err = io.EOF
		return Packet{}, io.EOF
	}
	var data []byte
	var length int
	if err == nil {
		data, length, err = rec.link.frame(rec.data, rec.length)
	}
	if err != nil {
		r.err = fmt.Errorf("capture: %s: packet %d, byte %d: %w", r.name, r.count+1, r.in.begin, err)
		return Packet{}, r.err
	}
	r.count++
	return Packet{
		Number: r.count,
		Time:   rec.time,
		Data:   data,
		// Some tools write packets that are longer than they say they were.
		Length: max(length, len(data)),
	}, nil
}

// All returns the packets that are left, to range over. The last pair has the
// error that ended the reading, if one did. As with [Reader.Next], a packet's
// data is valid for its turn of the loop only.
func (r *Reader) All() iter.Seq2[Packet, error] {
	return func(yield func(Packet, error) bool) {
		for {
			p, err := r.Next()
			if err == io.EOF || !yield(p, err) || err != nil {
				return
			}
		}
	}
}

// Close releases what the Reader holds, and closes the file if [Open] opened
// one. Packets cannot be read any more.
func (r *Reader) Close() error {
	var errs []error
	for _, c := range r.close {
		errs = append(errs, c())
	}
	r.close = nil
	r.err = fmt.Errorf("capture: %s: %w", r.name, fs.ErrClosed)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}
