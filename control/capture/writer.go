package capture

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Options of pcapng that are only written.
const (
	optionComment     = 1
	optionInterface   = 2 // if_name
	optionApplication = 4 // shb_userappl
	optionFlags       = 2 // epb_flags
	optionVerdict     = 7 // epb_verdict

	verdictXDP = 2 // the answer of an XDP program follows:
	xdpDrop    = 1
	xdpPass    = 2
)

// snap is the snapshot length of the interfaces in a written capture. It must be the
// same for all, or libpcap refuses the file.
const snap = 65535

// nanoseconds is the clock of written interfaces, as if_tsresol has it.
const nanoseconds = 9

// Directions in epb_flags.
const (
	inbound  = 1
	outbound = 2
)

// Note is a written capture's record about a packet, in addition to the packet.
type Note struct {
	Interface string
	Out       bool // it was leaving the host, otherwise coming in
	Dropped   bool // by a program, or passed by it
	Comment   string
}

// Writer writes a capture of Ethernet frames as pcapng: one section in
// little-endian order, timestamps in nanoseconds. Each call writes whole blocks
// at once, so that what is written so far can be read. It is not safe for
// concurrent use.
type Writer struct {
	out        io.Writer
	interfaces map[string]uint32 // their numbers in the section
	block      []byte
}

// NewWriter begins a capture. The application is the name of the program that writes it.
func NewWriter(out io.Writer, application string) (*Writer, error) {
	w := &Writer{out: out, interfaces: make(map[string]uint32)}
	w.begin(blockSection)
	w.uint32(0x1a2b3c4d) // the byte order
	w.uint16(1)          // version 1.0
	w.uint16(0)
	w.uint64(1<<64 - 1) // as long as it will be
	w.option(optionApplication, []byte(application))
	return w, w.end()
}

// Write adds a packet, whose number does not count.
func (w *Writer) Write(p Packet, n Note) error {
	id, ok := w.interfaces[n.Interface]
	if !ok {
		id = uint32(len(w.interfaces))
		w.interfaces[n.Interface] = id
		w.begin(blockInterface)
		w.uint16(uint16(linkEthernet))
		w.uint16(0)
		w.uint32(snap)
		w.option(optionInterface, []byte(n.Interface))
		w.option(optionResolution, []byte{nanoseconds})
		if err := w.end(); err != nil {
			return err
		}
	}
	data := p.Data[:min(len(p.Data), snap)]
	stamp := uint64(p.Time.UnixNano())
	w.begin(blockEnhanced)
	w.uint32(id)
	w.uint32(uint32(stamp >> 32))
	w.uint32(uint32(stamp))
	w.uint32(uint32(len(data)))
	w.uint32(uint32(max(p.Length, len(p.Data))))
	w.bytes(data)
	action := uint64(xdpPass)
	if n.Dropped {
		action = xdpDrop
	}
	direction := uint32(inbound)
	if n.Out {
		direction = outbound
	}
	w.option(optionFlags, binary.LittleEndian.AppendUint32(nil, direction))
	w.option(optionVerdict, binary.LittleEndian.AppendUint64([]byte{verdictXDP}, action))
	w.option(optionComment, []byte(n.Comment))
	return w.end()
}

// begin begins a block, whose length end fills in.
func (w *Writer) begin(kind uint32) {
	w.block = w.block[:0]
	w.uint32(kind)
	w.uint32(0)
}

// end ends the block and writes it.
func (w *Writer) end() error {
	w.option(optionEnd, nil)
	total := uint32(len(w.block) + 4)
	w.uint32(total)
	binary.LittleEndian.PutUint32(w.block[4:], total)
	if _, err := w.out.Write(w.block); err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	return nil
}

func (w *Writer) uint16(v uint16) { w.block = binary.LittleEndian.AppendUint16(w.block, v) }
func (w *Writer) uint32(v uint32) { w.block = binary.LittleEndian.AppendUint32(w.block, v) }
func (w *Writer) uint64(v uint64) { w.block = binary.LittleEndian.AppendUint64(w.block, v) }

// bytes are filled up to whole words.
func (w *Writer) bytes(b []byte) {
	w.block = append(w.block, b...)
	w.block = append(w.block, make([]byte, -len(b)&3)...)
}

func (w *Writer) option(code uint16, value []byte) {
	w.uint16(code)
	w.uint16(uint16(len(value)))
	w.bytes(value)
}
