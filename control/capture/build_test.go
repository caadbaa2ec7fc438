package capture_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// stamp is the capture time of the built packets, in seconds and nanoseconds.
// Microseconds cut off what stampNano has below them.
const (
	stampSec  = 1_700_000_000
	stampNano = 123_456_789
)

// pcapFile builds a pcap file that holds packets, whole. Nano chooses the unit
// of its timestamps.
func pcapFile(order binary.AppendByteOrder, nano bool, link uint32, packets ...[]byte) []byte {
	magic, fraction := uint32(0xa1b2c3d4), uint32(stampNano/1000)
	if nano {
		magic, fraction = 0xa1b23c4d, stampNano
	}
	b := order.AppendUint32(nil, magic)
	b = order.AppendUint16(b, 2)
	b = order.AppendUint16(b, 4)
	b = append(b, make([]byte, 8)...)
	b = order.AppendUint32(b, 65535)
	b = order.AppendUint32(b, link)
	for _, p := range packets {
		b = order.AppendUint32(b, stampSec)
		b = order.AppendUint32(b, fraction)
		b = order.AppendUint32(b, uint32(len(p)))
		b = order.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	return b
}

// ngFile builds a pcapng file block by block.
type ngFile struct {
	order binary.AppendByteOrder
	bytes []byte
}

// block appends a block of which body appends the body.
func (f *ngFile) block(kind uint32, body func(b []byte) []byte) *ngFile {
	inner := body(nil)
	for len(inner)%4 != 0 {
		inner = append(inner, 0)
	}
	total := uint32(12 + len(inner))
	f.bytes = f.order.AppendUint32(f.bytes, kind)
	f.bytes = f.order.AppendUint32(f.bytes, total)
	f.bytes = append(f.bytes, inner...)
	f.bytes = f.order.AppendUint32(f.bytes, total)
	return f
}

func (f *ngFile) section() *ngFile {
	return f.block(0x0a0d0d0a, func(b []byte) []byte {
		b = f.order.AppendUint32(b, 0x1a2b3c4d)
		b = f.order.AppendUint16(b, 1)
		b = f.order.AppendUint16(b, 0)
		return f.order.AppendUint64(b, 1<<64-1)
	})
}

// iface appends an interface with options, which are complete, padding and all.
func (f *ngFile) iface(link uint16, snap uint32, options ...byte) *ngFile {
	return f.block(1, func(b []byte) []byte {
		b = f.order.AppendUint16(b, link)
		b = f.order.AppendUint16(b, 0)
		b = f.order.AppendUint32(b, snap)
		return append(b, options...)
	})
}

// option encodes an option for iface.
func (f *ngFile) option(code uint16, value ...byte) []byte {
	b := f.order.AppendUint16(nil, code)
	b = f.order.AppendUint16(b, uint16(len(value)))
	b = append(b, value...)
	return append(b, make([]byte, -len(value)&3)...)
}

// packet appends an enhanced packet block with an option behind the packet.
func (f *ngFile) packet(id uint32, stamp uint64, p []byte) *ngFile {
	return f.block(6, func(b []byte) []byte {
		b = f.order.AppendUint32(b, id)
		b = f.order.AppendUint32(b, uint32(stamp>>32))
		b = f.order.AppendUint32(b, uint32(stamp))
		b = f.order.AppendUint32(b, uint32(len(p)))
		b = f.order.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
		b = append(b, make([]byte, -len(p)&3)...)
		return append(b, f.option(1, []byte("comment")...)...)
	})
}

// obsolete appends a packet block as it was before enhanced ones.
func (f *ngFile) obsolete(id uint16, stamp uint64, p []byte) *ngFile {
	return f.block(2, func(b []byte) []byte {
		b = f.order.AppendUint16(b, id)
		b = f.order.AppendUint16(b, 7) // drops
		b = f.order.AppendUint32(b, uint32(stamp>>32))
		b = f.order.AppendUint32(b, uint32(stamp))
		b = f.order.AppendUint32(b, uint32(len(p)))
		b = f.order.AppendUint32(b, uint32(len(p)))
		return append(b, p...)
	})
}

// simple appends a simple packet block of a packet of length bytes.
func (f *ngFile) simple(length uint32, p []byte) *ngFile {
	return f.block(3, func(b []byte) []byte {
		return append(f.order.AppendUint32(b, length), p...)
	})
}

// compressions are the ways a capture may be packed, by name.
var compressions = map[string]func(testing.TB, []byte) []byte{
	"plain": func(_ testing.TB, b []byte) []byte { return b },
	"gzip": func(t testing.TB, b []byte) []byte {
		var packed bytes.Buffer
		return pack(t, &packed, gzip.NewWriter(&packed), b)
	},
	"zstd": func(t testing.TB, b []byte) []byte {
		var packed bytes.Buffer
		w, err := zstd.NewWriter(&packed)
		if err != nil {
			t.Fatal(err)
		}
		return pack(t, &packed, w, b)
	},
}

func pack(t testing.TB, packed *bytes.Buffer, w io.WriteCloser, b []byte) []byte {
	t.Helper()
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}
