package penalty

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"weir/filter/hash"
)

const (
	windowWords       = 2
	WindowBucketWords = Slots * (1 + windowWords) // 64-bit words in a bucket of windows

	spared = math.MaxUint64 // the time at which a window began that never ends
)

// Threshold is the number of units of a flow from which on it has a penalty, if it has them
// in no more than a time.
type Threshold struct {
	Units  uint64 // 0: there is none
	Window time.Duration
}

// Windows count the units of flows, by the 64-bit hash of the flow, each from the time on
// when it was first reported. They are the twin of bpf/threshold.h, in which programs
// add up what all CPUs count. The control plane only spares flows.
type Windows struct {
	words   []uint64
	buckets uint32
}

// NewWindows returns the windows in words. It fails unless their number is a positive
// multiple of WindowBucketWords.
func NewWindows(words []uint64) (*Windows, error) {
	if len(words) == 0 || len(words)%WindowBucketWords != 0 {
		return nil, fmt.Errorf("penalty: %d words of windows, want a multiple of %d", len(words), WindowBucketWords)
	}
	return &Windows{words, uint32(len(words) / WindowBucketWords)}, nil
}

func (w *Windows) bucket(h uint64) []uint64 {
	return w.words[int(hash.Reduce(h, w.buckets))*WindowBucketWords:][:WindowBucketWords]
}

// entryOf returns the words since and units of a slot.
func entryOf(bucket []uint64, slot int) []uint64 {
	return bucket[Slots+slot*windowWords:][:windowWords]
}

// find returns the slot of a flow, or -1.
func find(bucket []uint64, h uint64) int {
	for i := range Slots {
		if atomic.LoadUint64(&bucket[i]) == h {
			return i
		}
	}
	return -1
}

// Add adds units of the flow with hash h, and reports whether it has exceeded the threshold.
// The units with which a window begins do not count, since they are older.
func (w *Windows) Add(t Threshold, h, units uint64, now time.Duration) bool {
	b, at := w.bucket(h), uint64(now)
	i := find(b, h)
	if i < 0 {
		oldest := uint64(spared)
		for n := range Slots {
			if since := entryOf(b, n)[0]; since < oldest {
				i, oldest = n, since
			}
		}
		if i < 0 {
			return false
		}
		e := entryOf(b, i)
		e[0], e[1], b[i] = at, 0, h
		return false
	}
	e := entryOf(b, i)
	switch {
	case e[0] == spared:
		return false
	case int64(at-e[0]) > int64(t.Window):
		e[0], e[1] = at, 0
		return false
	}
	if e[1] += units; e[1] < t.Units {
		return false
	}
	e[0], e[1] = at, 0
	return true
}

// Spares reports whether the flow with hash h never exceeds a threshold.
func (w *Windows) Spares(h uint64) bool {
	b := w.bucket(h)
	i := find(b, h)
	return i >= 0 && atomic.LoadUint64(&entryOf(b, i)[0]) == spared
}

// Spare makes the flows with these hashes, which must not be 0, and no others never exceed a
// threshold. None that was spared before is without that for a moment. It reports whether
// there was room for all.
func (w *Windows) Spare(hashes []uint64) bool {
	wanted := make(map[uint64]bool, len(hashes))
	all := true
	for _, h := range hashes {
		wanted[h] = true
		all = w.spare(h) && all
	}
	for b := range int(w.buckets) {
		bucket := w.words[b*WindowBucketWords:][:WindowBucketWords]
		for i := range Slots {
			e := entryOf(bucket, i)
			if atomic.LoadUint64(&e[0]) == spared && !wanted[bucket[i]] {
				atomic.StoreUint64(&bucket[i], 0)
				atomic.StoreUint64(&e[0], 0)
			}
		}
	}
	return all
}

func (w *Windows) spare(h uint64) bool {
	b := w.bucket(h)
	if i := find(b, h); i >= 0 {
		atomic.StoreUint64(&entryOf(b, i)[0], spared)
	}
	// A program may have replaced it, or begin another window here at the same time.
	for range Slots {
		if i := find(b, h); i >= 0 && atomic.LoadUint64(&entryOf(b, i)[0]) == spared {
			return true
		}
		for i := range Slots {
			if e := entryOf(b, i); atomic.LoadUint64(&e[0]) != spared {
				atomic.StoreUint64(&e[0], spared) // programs do not replace it from here on
				atomic.StoreUint64(&b[i], h)
				break
			}
		}
	}
	return w.Spares(h)
}

// Words returns the memory of the windows.
func (w *Windows) Words() []uint64 { return w.words }
