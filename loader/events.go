package loader

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"

	"weir/bpf"
)

// EventFrame is how many bytes of a frame an event has at most.
const EventFrame = len(bpf.WeirEvent{}.Frame)

// Packet is what the program knew of a packet when that left.
type Packet = bpf.WeirPacket

// Event is a packet that the program has told of.
type Event struct {
	Time      time.Duration // by [Monotonic]
	Interface int           // its number
	OneIn     uint32        // of so many packets this is one
	Packet    Packet
	Frame     []byte // as far as it was captured; good until fn returns
}

// Sampling says of which packets a program is to tell.
type Sampling struct {
	OneIn  [bpf.WeirReasonREASON_COUNT]uint32 // by reason: of one packet in so many, a power of two; 0: of none
	Frames bool                               // with EventFrame bytes of each
	Until  time.Duration                      // by [Monotonic]
}

// newEvents makes an empty buffer.
func newEvents() (*array, error) {
	spec, _, err := statsSpec()
	if err != nil {
		return nil, err
	}
	return newArray(spec.Maps[bpf.WeirMapEvents])
}

// Sample sets of which packets the programs tell that were loaded with the
// stats. They go on until the time is over, whether somebody reads or not.
func (s *Stats) Sample(now Sampling) {
	s.read(func(k pinnedMaps) {
		to := (*bpf.WeirSampling)(unsafe.Pointer(&k[bpf.WeirMapSamplingNow].words[0]))
		snap := uint32(0)
		if now.Frames {
			snap = uint32(EventFrame)
		}
		atomic.StoreUint32(&to.Snap, snap)
		for i, n := range now.OneIn {
			atomic.StoreUint32(&to.OneIn[i], n)
		}
		atomic.StoreUint64(&to.Until, uint64(now.Until))
	})
}

// Events calls fn with the events since the last call, and does not wait for
// more. It gives no more than the buffer holds, however fast they come.
func (s *Stats) Events(fn func(*Event)) (err error) {
	s.read(func(k pinnedMaps) {
		s.reading.Lock()
		defer s.reading.Unlock()
		err = s.readEvents(k[bpf.WeirMapEvents], fn)
	})
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	return nil
}

func (s *Stats) readEvents(a *array, fn func(*Event)) error {
	if s.events == nil {
		r, err := ringbuf.NewReader(a.m)
		if err != nil {
			return err
		}
		r.SetDeadline(time.Unix(1, 0)) // in the past: what is there, no waiting
		s.events = r
	}
	const header = int(unsafe.Offsetof(bpf.WeirEvent{}.Frame))
	for range a.entries() / int(unsafe.Sizeof(bpf.WeirEvent{})) {
		err := s.events.ReadInto(&s.record)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		raw := s.record.RawSample
		if len(raw) != int(unsafe.Sizeof(bpf.WeirEvent{})) {
			return fmt.Errorf("one has %d bytes, where %d are expected", len(raw), unsafe.Sizeof(bpf.WeirEvent{}))
		}
		e := (*bpf.WeirEvent)(unsafe.Pointer(&raw[0]))
		fn(&Event{
			Time: time.Duration(e.Time), Interface: int(e.Ifindex), OneIn: e.OneIn, Packet: e.Packet,
			Frame: raw[header:][:min(int(e.Captured), EventFrame)],
		})
	}
	return nil
}

// EventsLost is the number of events that found the buffer full, because
// nobody had read it in time.
func (s *Stats) EventsLost() uint64 { return s.sumOfRows(eventsLostWord) }
