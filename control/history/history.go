// Package history records what passed and what was dropped, for a day in steps of ten
// seconds, and for a month in steps of a quarter of an hour.
//
// The file is two rings of slots of a fixed length. The slot of a record follows from
// its time, and each record has a checksum: there is no head or index that could
// disagree with the records. A record that was written in part, or is damaged, is a
// gap. What cannot be written stays in memory.
package history

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir/filter/ordered"
)

// The resolutions, and how long records of them are kept.
const (
	Fine       = 10 * time.Second
	Coarse     = 15 * time.Minute
	KeepFine   = 24 * time.Hour
	KeepCoarse = 30 * 24 * time.Hour
)

// slotLen has room for all reasons, and for MaxLists lists with long names.
const slotLen = 4096

// ring is a ring of slots in the file.
type ring struct {
	step   time.Duration
	slots  int64
	offset int64 // of the first slot
}

var (
	fine   = ring{Fine, int64(KeepFine / Fine), 0}
	coarse = ring{Coarse, int64(KeepCoarse / Coarse), int64(KeepFine/Fine) * slotLen}
)

// Size is the size of the file: 47 MB.
const Size = int64(KeepFine/Fine+KeepCoarse/Coarse) * slotLen

// at returns the offset of the slot of a record.
func (g ring) at(begin time.Time) int64 {
	n := begin.Unix() / int64(g.step/time.Second) % g.slots
	return g.offset + (n+g.slots)%g.slots*slotLen
}

// maxWaiting bounds the records that wait for a slow disk: ten minutes.
const maxWaiting = 60

// Recorder records. Its methods are safe for concurrent use.
type Recorder struct {
	log   *slog.Logger
	wake  chan struct{}
	ended chan struct{} // closed when run has ended

	disk   sync.Mutex       // guards the following; a slow disk may hold it up
	file   *os.File         // nil: all is in memory
	memory map[int64][]byte // slots that are not in the file
	rolled time.Time        // begin of the interval of the last record
	failed string           // the last logged error

	mu      sync.Mutex // guards the rest
	current Record     // zero: none
	waiting []Record   // to be written
	counts  Counts
	closed  bool
}

// Counts say how well the history could be recorded.
type Counts struct {
	Errors  uint64 // records that could not be written, and are in memory only
	Lost    uint64 // records that were lost, because the disk was too slow
	Damaged uint64 // slots that were damaged when the history was opened
}

// Open opens the history in a file, which is made if necessary; with "" it is kept in
// memory. It does not fail: what is wrong with the file is logged, and then the
// history is kept in memory.
func Open(path string, now time.Time, log *slog.Logger) *Recorder {
	h := &Recorder{log: log, wake: make(chan struct{}, 1), ended: make(chan struct{}), memory: make(map[int64][]byte)}
	if path != "" {
		file, err := open(path)
		if err != nil {
			log.Error("the history is kept in memory only: " + err.Error())
		}
		h.file = file
	}
	h.disk.Lock() // until the file was read, which may take a while
	go h.run(now)
	return h
}

func open(path string) (*os.File, error) {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file: remove it", path)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() != Size {
		err = f.Truncate(Size) // the new part takes no room yet
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Sample has the counts of a short time, such as a second.
type Sample struct {
	Interval time.Duration
	Reasons  []Reason
	Lists    []List
}

// Add adds a sample that ends now. It does not wait for the disk.
func (h *Recorder) Add(now time.Time, s Sample) {
	begin := now.Add(-min(s.Interval, Fine) / 2).Truncate(Fine)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	if !h.current.Begin.Equal(begin) {
		h.queue()
		h.current = Record{Begin: begin}
	}
	r := Record{Covered: s.Interval, Reasons: ordered.Of(slices.Values(s.Reasons), byReason), Lists: s.Lists}
	h.current.add(r)
}

// queue makes the current record one that waits to be written.
func (h *Recorder) queue() {
	if h.current.Begin.IsZero() {
		return
	}
	if len(h.waiting) == maxWaiting {
		h.waiting = slices.Delete(h.waiting, 0, 1)
		h.counts.Lost++
	}
	h.waiting, h.current = append(h.waiting, h.current), Record{}
	select {
	case h.wake <- struct{}{}:
	default: // it has yet to look
	}
}

// run writes records until Close.
func (h *Recorder) run(now time.Time) {
	defer close(h.ended)
	h.recover(now)
	h.disk.Unlock()
	for open := true; open; {
		_, open = <-h.wake
		for h.writeNext() {
		}
	}
}

// writeNext writes the oldest record that waits.
func (h *Recorder) writeNext() bool {
	h.disk.Lock()
	defer h.disk.Unlock()
	h.mu.Lock()
	if len(h.waiting) == 0 {
		h.mu.Unlock()
		return false
	}
	r := h.waiting[0]
	h.waiting = slices.Delete(h.waiting, 0, 1)
	h.mu.Unlock()
	if before, ok := h.read(fine, r.Begin, nil); ok { // of a daemon before, or the clock was set back
		before.add(r)
		r = before
	}
	h.write(fine, r)
	interval := r.Begin.Truncate(Coarse)
	if !h.rolled.IsZero() && !interval.Equal(h.rolled) {
		h.roll(h.rolled)
	}
	h.rolled = interval
	return true
}

// roll writes the coarse record of an interval from the fine ones.
func (h *Recorder) roll(interval time.Time) {
	sum := Record{Begin: interval}
	names := make(map[string]string)
	for at := interval; at.Before(interval.Add(Coarse)); at = at.Add(Fine) {
		if r, ok := h.read(fine, at, names); ok {
			sum.add(r)
		}
	}
	if sum.Covered > 0 {
		h.write(coarse, sum)
	}
}

// write writes a record to its slot, or else keeps it in memory.
func (h *Recorder) write(g ring, r Record) {
	slot := encode(r)
	if h.file == nil {
		h.memory[g.at(r.Begin)] = slices.Clip(slices.Clone(slot))
		return
	}
	_, err := h.file.WriteAt(slot, g.at(r.Begin))
	text := ""
	if err == nil {
		delete(h.memory, g.at(r.Begin))
	} else {
		h.memory[g.at(r.Begin)] = slices.Clip(slices.Clone(slot))
		text = err.Error()
		h.mu.Lock()
		h.counts.Errors++
		h.mu.Unlock()
	}
	if text != "" && h.failed == "" {
		h.log.Error("the history could not be written, it stays in memory: " + text)
	} else if text == "" && h.failed != "" {
		h.log.Info("the history is written again")
	}
	h.failed = text
}

// read reads the record of an interval.
func (h *Recorder) read(g ring, begin time.Time, names map[string]string) (Record, bool) {
	if names == nil {
		names = make(map[string]string)
	}
	slot, ok := h.memory[g.at(begin)]
	if !ok && h.file != nil {
		slot = make([]byte, slotLen)
		n, err := h.file.ReadAt(slot, g.at(begin))
		if err != nil && err != io.EOF {
			return Record{}, false
		}
		slot = slot[:n]
	}
	r, err := decode(slot, names)
	return r, err == nil && r.Begin.Equal(begin)
}

// recover looks through the file: it writes coarse records that a daemon before has
// not come to write, and counts what is damaged.
func (h *Recorder) recover(now time.Time) {
	if h.file == nil {
		return
	}
	var intervals []time.Time
	damaged := uint64(0)
	slot := make([]byte, slotLen)
	for at := h.written(0); at < Size; at = h.written(at + slotLen) {
		n, err := h.file.ReadAt(slot, at)
		if err != nil && err != io.EOF {
			damaged++
			continue
		}
		begin, _, ok := beginOf(slot[:n])
		switch {
		case !ok:
			if slices.ContainsFunc(slot[:min(n, headerLen)], func(b byte) bool { return b != 0 }) {
				damaged++
			}
		case at < coarse.offset && fine.at(begin) == at:
			if i := begin.Truncate(Coarse); !slices.Contains(intervals[max(0, len(intervals)-2):], i) {
				intervals = append(intervals, i)
			}
		}
	}
	current := now.Truncate(Coarse)
	for _, i := range intervals {
		if i.Equal(current) {
			h.rolled = current
		} else if _, done := h.read(coarse, i, nil); !done {
			h.roll(i)
		}
	}
	if damaged > 0 {
		h.log.Warn("parts of the history are damaged, and left out", "slots", damaged)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts.Damaged = damaged
}

// written returns the offset of the first slot from at on that may be written, or Size.
// Most of a young file is a hole: reading it would take 50 MB of the page cache.
func (h *Recorder) written(at int64) int64 {
	data, err := h.file.Seek(at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO): // at is behind all data
		return Size
	case err != nil: // of a file system without holes
		return at
	}
	return max(at, data-data%slotLen)
}

// StepOf returns the step that Since uses when one is asked for: rounded up to a multiple of Fine,
// or of Coarse where since exceeds KeepFine.
func StepOf(since, step time.Duration) time.Duration {
	unit := Fine
	if since > KeepFine {
		unit = Coarse
	}
	return max((step + unit - 1).Truncate(unit), unit)
}

// Since returns what was recorded from a time until now, added up by steps, in order.
// There are no records of times when nothing was counted. [StepOf] returns the step.
func (h *Recorder) Since(from, now time.Time, step time.Duration) []Record {
	step = StepOf(now.Sub(from), step)
	edge, first := from, from // fine records from the edge on, coarse ones from the first one to it
	if oldest := now.Add(-KeepFine); from.Before(oldest) {
		edge = oldest.Truncate(Coarse).Add(Coarse)
		first = later(from.Truncate(Coarse), now.Add(-KeepCoarse).Truncate(Coarse))
	}
	var all []Record
	add := func(r Record) {
		begin := r.Begin.Truncate(step)
		if last := len(all) - 1; last >= 0 && all[last].Begin.Equal(begin) {
			all[last].add(r)
			return
		}
		if last := len(all) - 1; last >= 0 {
			all[last].trim(MaxLists)
		}
		r = r.clone()
		r.Begin = begin
		all = append(all, r)
	}
	names := make(map[string]string)
	h.disk.Lock()
	defer h.disk.Unlock()
	for at := first; at.Before(edge) && at.Before(now); at = at.Add(Coarse) {
		if r, ok := h.read(coarse, at, names); ok {
			add(r)
		}
	}
	h.mu.Lock()
	unwritten := slices.Clone(h.waiting)
	if !h.current.Begin.IsZero() {
		unwritten = append(unwritten, h.current.clone())
	}
	h.mu.Unlock()
	for at := edge.Truncate(Fine); !at.After(now); at = at.Add(Fine) {
		if r, ok := h.read(fine, at, names); ok {
			add(r)
		}
		for _, r := range unwritten {
			if r.Begin.Equal(at) {
				add(r)
			}
		}
	}
	if last := len(all) - 1; last >= 0 {
		all[last].trim(MaxLists)
	}
	return all
}

func later(a, b time.Time) time.Time {
	return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare)
}

// Sum adds up records.
func Sum(all []Record) (sum Record) {
	for _, r := range all {
		if sum.Begin.IsZero() {
			sum.Begin = r.Begin
		}
		sum.add(r)
	}
	sum.trim(len(sum.Lists))
	return sum
}

// Counts returns how well the history could be recorded.
func (h *Recorder) Counts() Counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts
}

// closeGrace is how long Close waits for the disk, which may be busy for seconds.
const closeGrace = 10 * time.Second

// Close writes what is not written yet, and closes the file. Samples that are added
// afterwards are lost. A disk that hangs does not hold it up.
func (h *Recorder) Close() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.queue()
	h.closed = true
	close(h.wake)
	h.mu.Unlock()
	select {
	case <-h.ended:
	case <-time.After(closeGrace):
		return errors.New("the last of the history was not written: the disk does not answer")
	}
	if h.file == nil {
		return nil
	}
	return h.file.Close()
}
