package feed

import "sync/atomic"

// Progress is how far the reading of sources is. Its methods may be called
// concurrently; those of a nil Progress do nothing.
type Progress struct {
	source      atomic.Pointer[string]
	done, total atomic.Int64
}

// Get returns the source that was read last, how many of its bytes have been,
// and how many there are; 0 if that is unknown. The source is "" at first.
func (p *Progress) Get() (source string, done, total int64) {
	if p == nil {
		return "", 0, 0
	}
	if s := p.source.Load(); s != nil {
		source = *s
	}
	return source, p.done.Load(), p.total.Load()
}

// begin begins a source.
func (p *Progress) begin(source string, total int64) {
	if p != nil {
		p.done.Store(0)
		p.total.Store(total)
		p.source.Store(&source)
	}
}

// add adds bytes that were read.
func (p *Progress) add(n int) {
	if p != nil {
		p.done.Add(int64(n))
	}
}
