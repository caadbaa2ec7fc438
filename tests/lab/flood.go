package lab

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// Flood sends from several sources at known, constant rates.
type Flood struct {
	Sources []netip.Addr
	Rates   []float64 // packets a second of each source
	sent    []atomic.Uint64
	done    atomic.Bool
	ended   chan struct{}
}

// StartFlood begins to send frames from 198.51.100.0 to .49, at 40 packets a second
// and 8 more for each following source, or a share of that, until Stop or the test's end.
// frame returns the frame of a source.
func (e End) StartFlood(t testing.TB, share float64, frame func(src netip.Addr) []byte) *Flood {
	t.Helper()
	const n = 50
	f := &Flood{sent: make([]atomic.Uint64, n), ended: make(chan struct{})}
	var frames [][]byte
	for i := range n {
		src := netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})
		f.Sources, f.Rates = append(f.Sources, src), append(f.Rates, share*float64(40+8*i))
		frames = append(frames, frame(src))
	}
	tx := e.Sender(t)
	go func() {
		defer close(f.ended)
		const step = time.Millisecond
		began := time.Now()
		// Where a machine cannot keep up, the flood is slower, and each source keeps its share.
		for at := step; !f.done.Load(); at += step {
			<-time.After(at - time.Since(began))
			for i, frame := range frames {
				for float64(f.sent[i].Load()) < at.Seconds()*f.Rates[i] && !f.done.Load() {
					if err := tx.Send(frame); err != nil {
						t.Error(err)
						return
					}
					f.sent[i].Add(1)
				}
			}
		}
	}()
	t.Cleanup(f.Stop)
	return f
}

// Stop ends the flood.
func (f *Flood) Stop() {
	f.done.Store(true)
	<-f.ended
}

// Sent returns the number of packets that a source has sent.
func (f *Flood) Sent(i int) uint64 { return f.sent[i].Load() }

// Index returns a source's number.
func (f *Flood) Index(t testing.TB, source string) int {
	t.Helper()
	i := slices.Index(f.Sources, netip.MustParseAddr(source))
	if i < 0 {
		t.Fatalf("%s sends nothing", source)
	}
	return i
}
