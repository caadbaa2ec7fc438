package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"weir/bpf"
)

// EventFrame is the maximum number of bytes of a frame in an event.
const EventFrame = len(bpf.WeirEvent{}.Frame)

// Packet is a packet as the program saw it when it left.
type Packet = bpf.WeirPacket

// Event is a packet that was sampled.
type Event struct {
	Time      time.Duration // by [Monotonic]
	Interface int           // its index
	OneIn     uint32        // the sampling rate: one packet in OneIn
	First     int           // importance of the packet's flow, which is new; 0: it is a sample
	Packet    Packet
	Frame     []byte // its first bytes, valid until fn returns
}

// Sampling sets which packets a program samples.
type Sampling struct {
	OneIn  [bpf.WeirReasonREASON_COUNT]uint32 // by reason: one packet in this many, a power of two; 0: none
	First  bool                               // also the first packets of new flows, within their budget
	Frames bool                               // with the first EventFrame bytes of each
	Until  time.Duration                      // by [Monotonic]
}

// newEvents returns an empty buffer.
func newEvents() (*array, error) {
	spec, _, err := statsSpec()
	if err != nil {
		return nil, err
	}
	return newArray(spec.Maps[bpf.WeirMapEvents])
}

// Sample sets which packets are sampled by the programs that were loaded with the
// stats. They go on until the time is over, whether somebody reads the events or
// not.
func (s *Stats) Sample(now Sampling) {
	s.read(func(k pinnedMaps) {
		to := (*bpf.WeirSampling)(unsafe.Pointer(&k[bpf.WeirMapSamplingNow].words[0]))
		snap := uint32(0)
		if now.Frames {
			snap = uint32(EventFrame)
		}
		atomic.StoreUint32(&to.Snap, snap)
		atomic.StoreUint32(&to.First, uint32(Flag(now.First)))
		for i, n := range now.OneIn {
			atomic.StoreUint32(&to.OneIn[i], n)
		}
		atomic.StoreUint64(&to.Until, uint64(now.Until))
	})
}

// Events calls fn with the events since the last call, without waiting for more:
// at most as many as fit into the buffer, however fast they arrive.
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
		r.SetDeadline(time.Unix(1, 0)) // in the past: do not wait for more
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
			return fmt.Errorf("an event has %d bytes, want %d", len(raw), unsafe.Sizeof(bpf.WeirEvent{}))
		}
		e := (*bpf.WeirEvent)(unsafe.Pointer(&raw[0]))
		event := Event{
			Time: time.Duration(e.Time), Interface: int(e.Ifindex), OneIn: e.OneIn, First: int(e.First), Packet: e.Packet,
			Frame: raw[header:][:min(int(e.Captured), EventFrame)],
		}
		if s.entry.Load() == entryBare {
			event.addEthernet()
		}
		fn(&event)
	}
	return nil
}

// CloseEvents releases the memory that reading events takes, until they are read again.
func (s *Stats) CloseEvents() (err error) {
	s.read(func(pinnedMaps) {
		s.reading.Lock()
		defer s.reading.Unlock()
		if s.events != nil {
			err = s.events.Close()
			s.events = nil
		}
	})
	if err != nil {
		return fmt.Errorf("close the reader of events: %w", err)
	}
	return nil
}

// addEthernet adds an Ethernet header to a packet that has no link header, so that readers
// of events and captures need to know but one kind of frames.
func (e *Event) addEthernet() {
	e.Packet.Network += minFrame
	e.Packet.Len += minFrame
	if len(e.Frame) == 0 {
		return
	}
	proto := uint16(unix.ETH_P_IP)
	if e.Frame[0]>>4 == 6 {
		proto = unix.ETH_P_IPV6
	}
	frame := binary.BigEndian.AppendUint16(make([]byte, minFrame-2, EventFrame), proto)
	e.Frame = append(frame, e.Frame[:min(len(e.Frame), EventFrame-minFrame)]...)
}

// EventsLost returns the number of events that were lost because the buffer was
// full.
func (s *Stats) EventsLost() uint64 { return s.sumOfRows(eventsLostWord) }

// InTunnel reports whether the addresses of a packet belong to a header in a tunnel.
func InTunnel(p *Packet) bool { return p.Encapsulated&2 != 0 } // IN_TUNNEL
