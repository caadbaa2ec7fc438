package listfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go4.org/netipx"
	"golang.org/x/sys/unix"
)

// ErrTooMuchWork means that a source was rejected because reading it takes more
// processor time than its [Work] has.
var ErrTooMuchWork = errors.New("too much work")

// ErrTooManyLines means that a file was rejected because it has more lines than
// [Options.MaxLines].
var ErrTooManyLines = errors.New("too many lines")

// Work bounds the work of reading a source, which may have several files: it ends
// with a context, or when it has taken a certain processor time. [Options] bounds the
// memory of its entries instead.
//
// All works of a process together take no more processors than there are: however
// many sources are read, other goroutines wait for milliseconds. The work that has taken the
// least time is the next, so that a large source does not delay small ones. Methods of a nil Work
// bound nothing.
type Work struct {
	ctx    context.Context
	most   time.Duration // 0: no limit
	spent  atomic.Int64  // nanoseconds of processor time
	behind bool          // the others
	ranges ranges

	maxWide, together int64 // 0: no limit
	wide              atomic.Int64
	held              int64 // guarded by the mutex of reserved
}

// NewWork returns work that ends with ctx, and that takes the given processor time
// at most; 0 for no limit.
func NewWork(ctx context.Context, most time.Duration) *Work { return &Work{ctx: ctx, most: most} }

// Behind lets the works of others have processors first. It is called before the work begins.
func (w *Work) Behind() { w.behind = true }

// Bound bounds the entries that ranges become beyond a few a line, where a prefix of IPv4 counts as one,
// one of IPv6 as four and a flow as sixteen, and those that all works have together, by
// [list.Entries.Weight]: above these, all but the one that was the first to have some wait until
// another work is [Work.Release]d. It is called before the work begins; 0 is no limit.
func (w *Work) Bound(wide, together int) {
	if w != nil {
		w.maxWide, w.together = int64(wide), int64(together)
	}
}

// Spent returns the processor time that was taken.
func (w *Work) Spent() time.Duration {
	if w == nil {
		return 0
	}
	return time.Duration(w.spent.Load())
}

// Err returns why the work must end: the error of the context, or ErrTooMuchWork.
func (w *Work) Err() error {
	switch {
	case w == nil:
		return nil
	case w.ctx.Err() != nil:
		return w.ctx.Err()
	case w.most > 0 && w.Spent() > w.most:
		return fmt.Errorf("%w: more than %v of processor time", ErrTooMuchWork, w.most)
	}
	return nil
}

// Done is closed when the context of the work ends. It is nil for a nil Work.
func (w *Work) Done() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.ctx.Done()
}

// What a line may become, whatever others do, and what its entries count beyond that.
const (
	freePrefixes = 8
	freeFlows    = 2 // of both families
	wideV4       = 1
	wideV6       = 4
	wideFlow     = 16
)

// TooWideError means that a source was rejected because its ranges become more entries than its
// [Work] may have.
type TooWideError struct {
	Line int // the first that was too much, from 1
}

func (e *TooWideError) Error() string {
	return fmt.Sprintf("line %d: the ranges become too many entries: write networks instead of ranges of addresses, "+
		"give a list its own ports instead of ranges of ports, or set max_entries", e.Line)
}

// widen counts what the ranges of a line became beyond what each may, and reports whether there may be
// so much.
func (w *Work) widen(n int) bool {
	return w == nil || w.maxWide == 0 || w.wide.Add(int64(n)) <= w.maxWide
}

// reserved is the weight of the entries that are being read.
var reserved struct {
	sync.Mutex
	all     int64
	by      []*Work       // in the order in which they began to have some
	changed chan struct{} // closed when there is less; nil: none waits
}

// reserve counts entries of the work, and waits while all works together have too many.
func (w *Work) reserve(n int) {
	if w == nil || w.together == 0 {
		return
	}
	r := &reserved
	r.Lock()
	if w.held == 0 {
		r.by = append(r.by, w)
	}
	w.held += int64(n)
	r.all += int64(n)
	for r.all > w.together && r.by[0] != w && w.ctx.Err() == nil {
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.Unlock()
		w.Idle(func() {
			select {
			case <-w.ctx.Done():
			case <-changed:
			}
		})
		r.Lock()
	}
	r.Unlock()
}

// Release ends the work: what was read is elsewhere, or forgotten.
func (w *Work) Release() {
	r := &reserved
	r.Lock()
	defer r.Unlock()
	if i := slices.Index(r.by, w); i >= 0 {
		r.by = slices.Delete(r.by, i, i+1)
		r.all, w.held = r.all-w.held, 0
		if r.changed != nil {
			close(r.changed)
			r.changed = nil
		}
	}
}

// processors are those that reading takes.
var processors = turns{free: runtime.GOMAXPROCS(0)}

// turns lends processors to works.
type turns struct {
	mu      sync.Mutex
	free    int
	waiting []turn // in the order of their arrival
}

type turn struct {
	work *Work
	come *sync.Mutex // locked until it is the work's turn
}

// take waits for a processor.
func (t *turns) take(w *Work) {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return
	}
	come := new(sync.Mutex)
	come.Lock()
	t.waiting = append(t.waiting, turn{w, come})
	t.mu.Unlock()
	come.Lock()
}

// give frees a processor.
func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		t.free++
		return
	}
	next := 0
	for i, other := range t.waiting {
		if other.work.before(t.waiting[next].work) {
			next = i
		}
	}
	t.waiting[next].come.Unlock()
	t.waiting = slices.Delete(t.waiting, next, next+1)
}

// before reports whether the work has a processor before another one.
func (w *Work) before(other *Work) bool {
	if w.behind != other.behind {
		return other.behind
	}
	return w.Spent() < other.Spent()
}

// Shift is a part of some work, done by one goroutine.
type Shift struct {
	work  *Work
	began time.Duration // processor time of the thread
}

// Begin begins a part of the work, which waits for a processor. The caller must end
// it.
func (w *Work) Begin() *Shift {
	if w == nil {
		return nil
	}
	processors.take(w)
	runtime.LockOSThread() // whose time is measured
	return &Shift{w, threadTime()}
}

// shifted is a reader that counts the work of those above it, such as a decompressor that
// reads on without a text. It learns in which shift it is read.
type shifted interface{ In(*Shift) }

// in lets r count the time of a shift, in the goroutine that reads it; nil ends that.
func (s *Shift) in(r io.Reader) {
	if r, ok := r.(shifted); ok {
		r.In(s)
	}
}

// Check counts the time that was taken until now, lets others have the processor, and
// returns why the work must end, if it must.
func (s *Shift) Check() error {
	if s == nil {
		return nil
	}
	s.count()
	s.work.Idle(func() {})
	return s.work.Err()
}

// End ends the part.
func (s *Shift) End() {
	if s == nil {
		return
	}
	s.count()
	runtime.UnlockOSThread()
	processors.give()
}

func (s *Shift) count() {
	now := threadTime()
	s.work.spent.Add(int64(now - s.began))
	s.began = now
}

// Idle calls fn within a part of the work without holding a processor: fn waits for
// something, or begins parts itself.
func (w *Work) Idle(fn func()) {
	if w == nil {
		fn()
		return
	}
	processors.give()
	defer processors.take(w)
	fn()
}

// threadTime returns the processor time of the calling thread.
func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0 // the clock exists on all systems that run weir
	}
	return time.Duration(t.Nano())
}

// ranges remembers ranges that became many prefixes, so that their repetition costs
// nothing. It is safe for concurrent use; a nil *ranges remembers nothing.
type ranges struct {
	mu   sync.Mutex
	seen map[netipx.IPRange]struct{}
}

// memorable is the number of prefixes from which on a range is remembered: they take
// more memory than remembering it does.
const memorable = 8

func (r *ranges) has(s netipx.IPRange) bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.seen[s]
	return ok
}

func (r *ranges) add(s netipx.IPRange) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = make(map[netipx.IPRange]struct{})
	}
	r.seen[s] = struct{}{}
}
