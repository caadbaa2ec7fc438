package serve

import (
	"maps"
	"slices"
	"sync"
)

// Problems are the listeners that fail, and are tried again. The zero value has none. It is safe
// for concurrent use.
type Problems struct {
	mu sync.Mutex
	of map[string]string // by listener
}

// set notes why a listener fails; nil: it does not any more.
func (p *Problems) set(what string, err error) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		delete(p.of, what)
		return
	}
	if p.of == nil {
		p.of = make(map[string]string)
	}
	p.of[what] = what + ": " + err.Error()
}

// All returns a line for each listener that fails, sorted.
func (p *Problems) All() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Values(p.of))
}
