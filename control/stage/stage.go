// Package stage has what the optional stages of the pipeline have in common. Each is a
// package below this one, and stages has the table of all.
package stage

import (
	"fmt"
	"hash/fnv"
	"path"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"weir/loader"
	"weir/loader/netif"
)

// Feature takes a version of Linux.
type Feature struct {
	Major, Minor int
	Name         string
	Otherwise    string // what becomes of it before that version
	Configured   bool   // so that an earlier version is refused
}

// Ticker has something to do while programs run.
type Ticker interface {
	// Tick does it for the programs of a generation, by the kernel's monotonic clock, and returns
	// how soon it is to be called again.
	Tick(now time.Duration, of *loader.Generation, incoming []Interface) time.Duration
}

// How soon a ticker is called again, with something to do and without.
const (
	Often = 100 * time.Millisecond
	Idle  = time.Hour
)

// Interface is an interface with the memory of its programs.
type Interface struct {
	netif.Target
	Stats *loader.Stats
}

// Covers reports whether what weir.yaml says of an interface or a glob holds for an interface,
// or for the programs that wait for those of a glob.
func Covers(o, t netif.Target) bool {
	if t.Glob() {
		return o == t
	}
	return o.Covers(t)
}

// At has a value that weir.yaml sets at an interface, or at a glob.
type At[T any] struct {
	netif.Target
	Is T
}

// Find returns the value of the first that covers an interface, the zero value where none does.
func Find[T any](all []At[T], t netif.Target) (is T) {
	for _, at := range all {
		if Covers(at.Target, t) {
			return at.Is
		}
	}
	return is
}

// Scope identifies a network namespace in the keys of programs.
func Scope(netns string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(netns))
	return h.Sum64()
}

// CheckName returns what is wrong with the name of an interface, or with a pattern.
func CheckName(name string) error {
	const most = 15 // IFNAMSIZ, without the end
	_, err := path.Match(name, "")
	isPattern := strings.ContainsAny(name, `*?[\`)
	switch {
	case err != nil:
		return fmt.Errorf("%q is a pattern with a bracket that does not end", name)
	case name == "" || strings.ContainsAny(name, "/: \t\n") || !isPattern && len(name) > most:
		return fmt.Errorf("%q cannot be an interface: 1 to %d characters, no slash, colon or space", name, most)
	}
	return nil
}

// Row is a line of weir status.
type Row struct{ Name, Text string }

// Count is a number of packets and of their bytes.
type Count struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Add adds a counter.
func (c *Count) Add(d loader.Counter) {
	c.Packets += d.Packets
	c.Bytes += d.Bytes
}

func (c Count) String() string {
	return humanize.Comma(int64(c.Packets)) + " " + english.PluralWord(int(c.Packets), "packet", "packets") + ", " + humanize.Bytes(c.Bytes)
}
