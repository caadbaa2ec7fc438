// Package replay passes captures through the program that weir attaches, in the
// kernel's test run, or through its reference implementation in Go.
package replay

import (
	"cmp"
	"errors"
	"fmt"

	"weir/control/capture"
	"weir/control/engine"
	"weir/control/stage/tracker"
	"weir/filter/ordered"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// Engine decides on frames.
type Engine interface {
	// Decide returns the outcome for an Ethernet frame.
	Decide(frame []byte) (verdict.Outcome, error)
	// Banks calls fn with the banks of the generation's i-th tracker.
	Banks(i int, fn func([]*sketch.Bank))
	Close() error
}

// Reference is the engine in Go.
type Reference struct{ Generation *engine.Generation }

// Decide implements Engine.
func (r Reference) Decide(frame []byte) (verdict.Outcome, error) {
	return r.Generation.Decide(frame), nil
}

// Banks implements Engine.
func (r Reference) Banks(i int, fn func([]*sketch.Bank)) { fn(r.Generation.Tracked.Banks[i : i+1]) }

// Close implements Engine; it leaves the generation open.
func (r Reference) Close() error { return nil }

// Kernel is the engine that runs the program in the kernel. It learns reason
// and list from the program's own counters.
type Kernel struct {
	generation *engine.Generation
	stats      *loader.Stats
	program    *loader.Program
	tracks     bool // packets may have penalties, or limits

	reasons, lists, buf []loader.Counter
}

// NewKernel loads the generation's program for test runs: that for XDP, or, of a
// generation of outgoing packets, that for TC.
func NewKernel(g *engine.Generation, lists int) (*Kernel, error) {
	stats, err := loader.NewStats(lists)
	if err != nil {
		return nil, err
	}
	return newKernel(g, stats)
}

// NewKernelOn is NewKernel with the program of an interface.
func NewKernelOn(g *engine.Generation, lists int, t netif.Target) (*Kernel, error) {
	stats, err := loader.NewStats(lists)
	if err != nil {
		return nil, err
	}
	stats.For(t)
	if t.Out {
		stats.UseTC(true)
	}
	return newKernel(g, stats)
}

// NewTCKernel is NewKernel with the program for TC. Without Ethernet headers, the program
// reads packets from their IP header on; it is still to be given whole frames.
func NewTCKernel(g *engine.Generation, lists int, ethernet bool) (*Kernel, error) {
	stats, err := loader.NewStats(lists)
	if err != nil {
		return nil, err
	}
	stats.UseTC(ethernet)
	return newKernel(g, stats)
}

func newKernel(g *engine.Generation, stats *loader.Stats) (*Kernel, error) {
	program, err := g.Load(stats)
	if err != nil {
		return nil, errors.Join(err, stats.Close())
	}
	k := &Kernel{generation: g, stats: stats, program: program, tracks: len(tracker.Of(g)) > 0 || g.Limits != nil || g.Patterns != nil}
	if err := stats.Take(program); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	k.reasons, k.lists = stats.Reasons(nil), stats.Lists(nil)
	return k, nil
}

// Stats returns the program's counters.
func (k *Kernel) Stats() *loader.Stats { return k.stats }

// allHeaders is a length in bytes that covers all headers that the program
// reads. The kernel's test run accepts frames up to about 72 KiB, or a page
// without multi-buffer support; longer ones are truncated to this length.
const allHeaders = 2048

// Decide implements Engine. A frame without a complete Ethernet header, which
// no interface delivers and the kernel does not run, is passed to the
// reference.
func (k *Kernel) Decide(frame []byte) (verdict.Outcome, error) {
	return k.decide(frame, k.program.Test)
}

// DecideSplit is Decide of a frame whose first buffer ends after some bytes.
func (k *Kernel) DecideSplit(frame []byte, first int) (verdict.Outcome, error) {
	return k.decide(frame, func(frame []byte) (uint32, error) { return k.program.TestSplit(frame, min(first, len(frame))) })
}

func (k *Kernel) decide(frame []byte, test func([]byte) (uint32, error)) (verdict.Outcome, error) {
	action, err := test(frame)
	if errors.Is(err, loader.ErrShortFrame) {
		return k.generation.Decide(frame), nil
	}
	if err != nil && len(frame) > allHeaders {
		frame = frame[:allHeaders]
		action, err = test(frame)
	}
	if err != nil {
		return verdict.Outcome{}, err
	}
	o := verdict.Outcome{Action: verdict.Pass}
	switch action {
	case loader.ActionDrop:
		o.Action = verdict.Drop
	case loader.ActionPass:
	default:
		return o, fmt.Errorf("program returned XDP action %d", action)
	}
	reason, ok := k.counted(k.stats.Reasons, k.reasons, len(frame))
	if !ok {
		return o, errors.New("program did not count the packet under just one reason")
	}
	o.Reason = verdict.Reason(reason)
	if o.Reason == verdict.Blocked || o.Reason == verdict.WouldBlock {
		o.List, ok = k.counted(k.stats.Lists, k.lists, len(frame))
		// A packet that a penalty or a limit would drop is monitored, too, without a list.
		if !ok && (o.Reason == verdict.Blocked || !k.tracks) {
			return o, errors.New("program did not count the packet under just one list")
		}
	}
	return o, nil
}

// counted finds the one counter that has grown since the last packet, by one
// packet of the given length, and updates last.
func (k *Kernel) counted(read func([]loader.Counter) []loader.Counter, last []loader.Counter, length int) (i int, ok bool) {
	k.buf = read(k.buf)
	grown := -1
	for i, c := range k.buf {
		if c == last[i] {
			continue
		}
		if grown >= 0 || c.Packets != last[i].Packets+1 || c.Bytes != last[i].Bytes+uint64(length) {
			return 0, false
		}
		grown = i
	}
	copy(last, k.buf)
	return max(grown, 0), grown >= 0
}

// Banks implements Engine.
func (k *Kernel) Banks(i int, fn func([]*sketch.Bank)) {
	if t, err := tracker.Open(k.generation, k.stats); err == nil {
		fn(t.Banks(i, t.Active(i)))
		t.Close() // if it fails, the memory leaks
	}
}

// Close implements Engine; it leaves the generation open.
func (k *Kernel) Close() error { return errors.Join(k.program.Close(), k.stats.Close()) }

// Summary counts the outcomes of the packets of captures.
type Summary struct {
	Packets  int            `json:"packets"`
	Bytes    int            `json:"bytes"` // on the wire
	Verdicts map[string]int `json:"verdicts"`
	Reasons  map[string]int `json:"reasons"`
	Lists    map[string]int `json:"lists,omitempty"` // blocked packets by list
	// WouldBlock are packets that passed, by the list that would have blocked them: it is on
	// trial, or monitor mode is on.
	WouldBlock map[string]int `json:"would_block_lists,omitempty"`

	// Heavy are the heavy hitters, the largest first, if requested.
	Heavy []HeavyHitter `json:"heavy,omitempty"`
	// HeavyDenied is the number of packets whose flow had no room in the flow
	// memory. If it is not 0, heavy hitters may be missing.
	HeavyDenied uint64 `json:"heavy_denied,omitempty"`
}

// HeavyHitter is a heavy hitter in captures.
type HeavyHitter struct {
	Key     string `json:"key"`
	Packets uint64 `json:"packets"` // counted exactly
	Bytes   uint64 `json:"bytes"`   // captured bytes of these packets
	// Before is an upper bound of the flow's units before it was counted
	// exactly.
	Before uint64 `json:"before,omitempty"`
}

// newSummary returns an empty summary, with every verdict and reason.
func newSummary() *Summary {
	s := &Summary{
		Verdicts: map[string]int{verdict.Pass.String(): 0, verdict.Drop.String(): 0},
		Reasons:  make(map[string]int),
		Lists:    make(map[string]int),

		WouldBlock: make(map[string]int),
	}
	for r := range verdict.NumReasons {
		s.Reasons[r.String()] = 0
	}
	return s
}

// Run passes a capture through the engine and adds to the summary. It calls
// visit, if not nil, with each packet and its outcome. A truncated capture ends
// with an error after its packets.
func Run(r *capture.Reader, e Engine, lists []engine.List, s *Summary, visit func(capture.Packet, verdict.Outcome) error) error {
	for p, err := range r.All() {
		if err != nil {
			return err
		}
		o, err := e.Decide(p.Data)
		if err != nil {
			return fmt.Errorf("packet %d: %w", p.Number, err)
		}
		s.Packets++
		s.Bytes += p.Length
		s.Verdicts[o.Action.String()]++
		s.Reasons[o.Reason.String()]++
		if o.List > 0 {
			by := s.Lists
			if o.Action == verdict.Pass {
				by = s.WouldBlock
			}
			by[lists[o.List-1].Name]++
		}
		if visit != nil {
			if err := visit(p, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// Top returns the names of the reasons in a summary that have packets, the most
// frequent first.
func (s *Summary) Top() []string { return top(s.Reasons) }

// top returns the names that have packets, the most frequent first.
func top(counts map[string]int) []string {
	var names []string
	for name, n := range counts {
		if n > 0 {
			names = append(names, name)
		}
	}
	ordered.By(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	return names
}
