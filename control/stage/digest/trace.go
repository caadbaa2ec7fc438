package digest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/capture"
	"weir/filter/digest"
	"weir/filter/hash"
	"weir/filter/invariant"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/filter/packet"
)

// Node is a daemon that can be queried.
type Node struct {
	Name string
	Ask  func(context.Context, api.TraceQuestion) (*api.Traced, error)
}

// Link is a link between two nodes, in both directions.
type Link struct{ A, B string }

// UnmarshalText parses "a-b", or "a-1:b-1" for names that contain dashes.
func (l *Link) UnmarshalText(text []byte) error {
	for _, separator := range []string{":", "-"} {
		if a, b, ok := strings.Cut(string(text), separator); ok {
			if a == "" || b == "" || a == b || strings.Contains(b, separator) {
				break
			}
			*l = Link{a, b}
			return nil
		}
	}
	return fmt.Errorf("link %q: want two nodes, as in a-b or a:b", text)
}

// Asked is a packet of a capture for which nodes are queried.
type Asked struct {
	Number int       `json:"number"` // in the capture, from 1
	Time   time.Time `json:"time"`
	Flow   string    `json:"packet"` // readable form
	data   []byte
}

// Sight is a time slice in which an interface of a node may have seen a packet.
type Sight struct {
	Node      string            `json:"node"`
	Interface string            `json:"interface"`
	Netns     string            `json:"netns,omitempty"`
	Slices    []api.TracedSlice `json:"slices"`
	Chance    float64           `json:"chance"` // false-positive rate
}

// Hop is a node on a packet's path, with those that the packet may have come
// from. Nodes that were not queried or did not answer are not included.
type Hop struct {
	Node   string  `json:"node"`
	Chance float64 `json:"chance"` // false-positive rate of all its interfaces together
	From   []Hop   `json:"from,omitempty"`
}

// Trace is the result for a packet.
type Trace struct {
	Asked
	Seen []Sight `json:"seen"` // in order of time
	// Unknown are the nodes that did not answer, have no records of the packet's
	// window, or did not find it in digests that cover checksums.
	Unknown []string `json:"unknown"`
	// Path is the reverse path, from where the packet arrived, if the links are
	// known. It ends where the packet was not seen.
	Path *Hop `json:"path,omitempty"`
	// Extra is the expected number of nodes on the path that are false
	// positives.
	Extra float64 `json:"extra_hops_expected"`
}

// Question is a query of nodes for packets, with the topology for
// reconstructing paths.
type Question struct {
	Nodes  []Node
	Links  []Link        // none: no paths
	From   string        // the node where the packets arrived
	Window time.Duration // time before and after its capture in which to look for a packet
}

// Read reads at most `most` traceable packets of a capture, 0 being unlimited,
// and counts the others.
func Read(ctx context.Context, r *capture.Reader, most int) (asked []Asked, untraced int, err error) {
	for p, err := range r.All() {
		if err = cmp.Or(context.Cause(ctx), err); err != nil {
			return asked, untraced, err
		}
		ip := packet.IP(p.Data)
		if _, err := invariant.Append(nil, ip); err != nil {
			untraced++
			continue
		}
		if most > 0 && len(asked) == most {
			break
		}
		asked = append(asked, Asked{p.Number, p.Time, flowOf(p.Data), slices.Clone(ip)})
	}
	return asked, untraced, nil
}

// flowOf returns a frame's packet in readable form.
func flowOf(frame []byte) string {
	p, _ := packet.Parse(frame)
	if p.HasPorts {
		return fmt.Sprintf("%s %v > %v", key.ProtoName(p.Proto), netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort))
	}
	return fmt.Sprintf("%s %v > %v", key.ProtoName(p.Proto), p.Src, p.Dst)
}

// Answer is the answer of a node: one for each batch of packets, or why there is none.
type Answer struct {
	Batches []*api.Traced
	Err     error
}

// Ask queries all nodes for packets. The error lists the nodes that did not
// answer; the answers of the others are returned in any case.
func (q Question) Ask(ctx context.Context, asked []Asked) ([]Trace, error) {
	answers := make([]Answer, len(q.Nodes))
	var wait sync.WaitGroup
	for i, n := range q.Nodes {
		wait.Go(func() {
			a := &answers[i]
			for batch := range q.Batches(asked) {
				var t *api.Traced
				if t, a.Err = n.Ask(ctx, batch); a.Err != nil {
					return
				}
				a.Batches = append(a.Batches, t)
			}
		})
	}
	wait.Wait()
	return q.Combine(asked, answers)
}

// Batches yields the questions that ask for packets.
func (q Question) Batches(asked []Asked) iter.Seq[api.TraceQuestion] {
	return func(yield func(api.TraceQuestion) bool) {
		for batch := range slices.Chunk(asked, api.MaxTraced) {
			if !yield(q.question(batch)) {
				return
			}
		}
	}
}

// Combine combines the answers of the nodes, in their order. The error lists the nodes
// that did not answer.
func (q Question) Combine(asked []Asked, all []Answer) ([]Trace, error) {
	traces := make([]Trace, len(asked))
	for i, a := range asked {
		traces[i] = Trace{Asked: a, Seen: []Sight{}, Unknown: []string{}}
	}
	answered := make([]bool, len(q.Nodes))
	errs := make([]error, len(q.Nodes))
	answers := make([][]*api.Traced, len(q.Nodes))
	for i, n := range q.Nodes {
		err := all[i].Err
		if err == nil {
			err = whole(all[i].Batches, len(asked))
		}
		if err != nil {
			errs[i] = fmt.Errorf("node %s: %w", n.Name, err)
			for k := range traces {
				traces[k].Unknown = append(traces[k].Unknown, n.Name)
			}
			continue
		}
		answered[i], answers[i] = true, all[i].Batches
		q.enter(traces, n.Name, answers[i])
	}
	for i := range traces {
		t := &traces[i]
		ordered.By(t.Seen, func(a, b Sight) int {
			return cmp.Or(a.Slices[0].Start.Compare(b.Slices[0].Start), strings.Compare(a.Node, b.Node))
		})
	}
	if len(q.Links) > 0 {
		for i := range traces {
			q.path(&traces[i], q.chances(i, answers, answered))
		}
	}
	return traces, errors.Join(errs...)
}

func (q Question) question(batch []Asked) api.TraceQuestion {
	var question api.TraceQuestion
	for _, a := range batch {
		at := a.when()
		question.Packets = append(question.Packets, api.TraceAbout{
			Data: a.data[:min(len(a.data), mostData)], From: at.Add(-q.Window), To: at.Add(q.Window),
		})
	}
	return question
}

// when returns the capture time of a packet, or now if it is unknown.
func (a Asked) when() time.Time {
	if a.Time.IsZero() {
		return time.Now()
	}
	return a.Time
}

// mostData is the part of a packet that nodes need, with the longest possible
// options.
const mostData = 40 + 8*256 + invariant.MostV6

// whole checks that the answer to a number of packets is complete.
func whole(batches []*api.Traced, packets int) error {
	for _, t := range batches {
		n := min(packets, api.MaxTraced)
		packets -= n
		for _, i := range t.Interfaces {
			if len(i.Packets) != n {
				return fmt.Errorf("answer for %d packets, want %d", len(i.Packets), n)
			}
		}
	}
	if packets > 0 {
		return fmt.Errorf("no answer for %d packets", packets)
	}
	return nil
}

// enter adds a node's answers.
func (q Question) enter(traces []Trace, node string, answers []*api.Traced) {
	for k := range traces {
		t, answer := &traces[k], answers[k/api.MaxTraced]
		seen, recorded := false, false
		end := t.when().Add(q.Window)
		for _, i := range answer.Interfaces {
			if p := i.Packets[k%api.MaxTraced]; len(p.Slices) > 0 {
				t.Seen = append(t.Seen, Sight{node, i.Name, i.Netns, p.Slices, p.Chance})
				seen = true
			}
			recorded = recorded || i.Since != nil && !i.Since.After(end)
		}
		if !recorded || !seen && answer.Version < digest.Version {
			t.Unknown = append(t.Unknown, node)
		}
	}
}

// chances returns the false-positive rates of the nodes that have answered.
func (q Question) chances(i int, answers [][]*api.Traced, answered []bool) map[string]float64 {
	all := make(map[string]float64)
	for n, node := range q.Nodes {
		if !answered[n] {
			continue
		}
		var none float64
		for _, f := range answers[n][i/api.MaxTraced].Interfaces {
			none += math.Log1p(-f.Packets[i%api.MaxTraced].Chance)
		}
		all[node.Name] = -math.Expm1(none)
	}
	return all
}

// path finds the reverse path of a packet: starting from where it arrived, all
// neighbours that have seen it, each once.
func (q Question) path(t *Trace, chances map[string]float64) {
	seen := make(map[string]bool)
	for _, s := range t.Seen {
		seen[s.Node] = true
	}
	t.Path = &Hop{Node: q.From, Chance: chances[q.From]}
	if !seen[q.From] {
		return
	}
	reached := map[string]bool{q.From: true}
	for level := []*Hop{t.Path}; len(level) > 0; {
		var next []*Hop
		for _, h := range level {
			for _, name := range q.neighbours(h.Node) {
				if reached[name] || !seen[name] {
					continue
				}
				reached[name] = true
				h.From = append(h.From, Hop{Node: name, Chance: chances[name]})
			}
			for i := range h.From {
				next = append(next, &h.From[i])
			}
		}
		level = next
	}
	beside := make(map[string]bool)
	for name := range reached {
		for _, n := range q.neighbours(name) {
			if !reached[n] && !beside[n] {
				beside[n] = true
				t.Extra += chances[n]
			}
		}
	}
}

// neighbours returns the neighbours of a node, sorted by name.
func (q Question) neighbours(node string) (all []string) {
	for _, l := range q.Links {
		switch node {
		case l.A:
			all = append(all, l.B)
		case l.B:
			all = append(all, l.A)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Check returns an error for an invalid question.
func (q Question) Check() error {
	names := make(map[string]bool)
	for _, n := range q.Nodes {
		if names[n.Name] {
			return fmt.Errorf("duplicate node %s", n.Name)
		}
		names[n.Name] = true
	}
	for _, l := range q.Links {
		for _, name := range []string{l.A, l.B} {
			if !names[name] {
				return fmt.Errorf("link %s-%s: unknown node %s", l.A, l.B, name)
			}
		}
	}
	switch {
	case len(q.Links) > 0 && q.From == "":
		return errors.New("a path needs the node at which the packets arrived")
	case q.From != "" && !names[q.From]:
		return fmt.Errorf("unknown node %s", q.From)
	case q.Window <= 0:
		return fmt.Errorf("window %v: want more than 0", q.Window)
	}
	return nil
}

// FoundLoop is a packet of a capture that appears to be in a routing loop.
type FoundLoop struct {
	Number int       `json:"number"` // of the sighting that revealed it
	Time   time.Time `json:"time"`
	Flow   string    `json:"packet"`
	First  uint8     `json:"first_ttl"`
	TTL    uint8     `json:"ttl"`
}

// Limits for captures.
const (
	offlineSightings = 1 << 20
	offlineSlice     = 10 * time.Second // within which a TTL must decrease
)

// Loops returns the packets of a capture that were seen repeatedly with a
// decreasing TTL, at the third sighting: unlike in the data plane, all packets
// are watched from the first sighting on.
func Loops(ctx context.Context, r *capture.Reader) (found []FoundLoop, packets int, err error) {
	loops := digest.NewLoops(offlineSightings)
	secret := hash.NewSecret(hash.NewSeed())
	for p, err := range r.All() {
		if err = cmp.Or(context.Cause(ctx), err); err != nil {
			return found, packets, err
		}
		packets++
		ip := packet.IP(p.Data)
		d, err := digest.Sum(secret, ip)
		if err != nil {
			continue
		}
		slice := uint32(p.Time.Unix() / int64(offlineSlice/time.Second))
		if first, suspected := loops.See(d, digest.TTL(ip), slice); suspected {
			found = append(found, FoundLoop{p.Number, p.Time, flowOf(p.Data), first, digest.TTL(ip)})
		}
	}
	return found, packets, nil
}
