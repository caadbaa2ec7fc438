package loader

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"weir/tests/wait"
)

// Programs wake this process when a flow enters the flow memory, if they are asked to.
func TestWakes(t *testing.T) {
	before := openFiles(t)
	w, err := NewWakes()
	if err != nil {
		t.Fatal(err)
	}
	tracker := Tracker{Lines: 2, Buckets: 1}
	tracker.V4.SrcMask[0] = ^uint32(0)
	for i := range tracker.Secret.Pairs {
		tracker.Secret.Pairs[i] = [2]uint64{rand.Uint64(), rand.Uint64()} // or all flows are one
	}
	g, err := NewGeneration(Config{Trackers: []Tracker{tracker}, Wakes: w})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewStats(0)
	if err != nil {
		t.Fatal(err)
	}
	p := loadAndTake(t, g, s)
	trackers, err := g.OpenTrackers(s)
	if err != nil {
		t.Fatal(err)
	}
	if !trackers.IsPresent(s) {
		t.Error("programs count elsewhere")
	}
	next := byte(0)
	send := func() { // each source enters: there is no limit
		t.Helper()
		next++
		frame := make([]byte, 64)
		frame[12], frame[13], frame[14], frame[17] = 8, 0, 0x45, 50
		frame[23], frame[26], frame[29] = 255, 192, next
		if _, err := p.Test(frame); err != nil {
			t.Fatal(err)
		}
	}
	produced := func() uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&w.produced[0]))) }
	send()
	if produced() != 0 || trackers.Wakes() {
		t.Error("programs wake who has not asked for it")
	}
	woken := make(chan error)
	go func() {
		for {
			err := w.Wait()
			woken <- err
			if err != nil {
				return
			}
		}
	}()
	trackers.SetWake(true)
	for i := range 3 {
		send()
		select {
		case err := <-woken:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(wait.Patience):
			t.Fatalf("flow %d wakes no one", i+1)
		}
	}
	trackers.SetWake(false)
	was := produced()
	send()
	if produced() != was {
		t.Error("programs wake who no longer asks for it")
	}
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	if err := <-woken; err == nil {
		t.Error("who waits goes on although nothing wakes any more")
	}
	if err := errors.Join(trackers.Close(), p.Close(), s.Close(), g.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	if after := openFiles(t); after != before {
		t.Errorf("open before: %s; after: %s", before, after)
	}
}
