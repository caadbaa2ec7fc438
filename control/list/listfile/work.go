package listfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

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
// many sources are read, other goroutines wait for milliseconds. Methods of a nil Work
// bound nothing.
type Work struct {
	ctx    context.Context
	most   time.Duration // 0: no limit
	spent  atomic.Int64  // nanoseconds of processor time
	ranges ranges
}

// NewWork returns work that ends with ctx, and that takes the given processor time
// at most; 0 for no limit.
func NewWork(ctx context.Context, most time.Duration) *Work { return &Work{ctx: ctx, most: most} }

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

// slots has one value for each processor that reading takes.
var slots = make(chan struct{}, runtime.GOMAXPROCS(0))

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
	slots <- struct{}{}
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
	<-slots
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
	<-slots
	defer func() { slots <- struct{}{} }()
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
	seen map[span]struct{}
}

// span is a range of addresses, both ends included.
type span struct{ first, last netip.Addr }

// memorable is the number of prefixes from which on a range is remembered: they take
// more memory than remembering it does.
const memorable = 8

func (r *ranges) has(s span) bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.seen[s]
	return ok
}

func (r *ranges) add(s span) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = make(map[span]struct{})
	}
	r.seen[s] = struct{}{}
}
