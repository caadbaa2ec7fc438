package lab

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"weir/tests/wait"
)

// trailer marks the frames of tests. It follows the packet, where Ethernet has
// padding, so that frames of every kind can have it.
var trailer = []byte("weir test")

// Numbered returns a frame with a trailer that has a number.
func Numbered(frame []byte, number uint64) []byte {
	return binary.BigEndian.AppendUint64(slices.Concat(frame, trailer), number)
}

// Numbered returns a frame from A to B with a trailer that has a number.
func (l *Lab) Numbered(frame []byte, number uint64) []byte {
	return Numbered(slices.Concat(l.B.MAC, l.A.MAC, frame[12:]), number)
}

// Renumber changes the number in a frame's trailer.
func Renumber(frame []byte, number uint64) {
	binary.BigEndian.PutUint64(frame[len(frame)-8:], number)
}

// NumberOf returns the number in a frame's trailer, false if it has none.
func NumberOf(frame []byte) (number uint64, ok bool) {
	if len(frame) < 8 || !bytes.HasSuffix(frame[:len(frame)-8], trailer) {
		return 0, false
	}
	return binary.BigEndian.Uint64(frame[len(frame)-8:]), true
}

// ARP is a frame that passes every filter.
func ARP() []byte { return append(make([]byte, 12), 8, 6) }

// atOnce frames fit into the wire's queue of 256, even if other processes keep
// the receiver's CPU.
const atOnce = 100

// Probe sends frames at A and receives at B those that pass the filter.
type Probe struct {
	*Lab
	*Sender
	*Receiver
	last uint64 // number sent
}

// NewProbe opens a probe that is closed when the test ends.
func NewProbe(t testing.TB, l *Lab) *Probe {
	t.Helper()
	return &Probe{Lab: l, Sender: l.A.Sender(t), Receiver: l.B.Receiver(t)}
}

// Pass sends frames and returns for each the frame received, nil if it did not
// come through. An ARP frame marks the end of every hundred.
func (p *Probe) Pass(t testing.TB, frames ...[]byte) (through [][]byte) {
	t.Helper()
	for some := range slices.Chunk(frames, atOnce) {
		through = append(through, p.passAtOnce(t, some)...)
	}
	return through
}

func (p *Probe) passAtOnce(t testing.TB, frames [][]byte) [][]byte {
	t.Helper()
	first := p.last + 1
	for _, f := range append(slices.Clip(frames), ARP()) {
		p.last++
		if err := p.Send(p.Numbered(f, p.last)); err != nil {
			t.Fatal(err)
		}
	}
	through := make([][]byte, len(frames))
	for deadline := wait.Deadline(); ; {
		f, err := p.Receive(time.Until(deadline))
		if err != nil {
			t.Fatalf("wait for the last frame: %v", err)
		}
		switch n, ok := NumberOf(f); {
		case !ok || n < first || n > p.last: // not from this call
		case n == p.last:
			return through
		default:
			through[n-first] = slices.Clone(f)
		}
	}
}
