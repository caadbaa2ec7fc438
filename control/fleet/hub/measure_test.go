package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/fleet/wire"
	"weir/control/observe"
	"weir/control/stage/sampler"
	"weir/filter/flood"
	"weir/filter/verdict"
	"weir/tests/wait"
)

// sampling answers for a node by seconds of traffic, whose usual packets are as users has them, too.
func sampling(t *testing.T, seed uint64, flooded bool, users func(*flood.Record)) (*observe.Floods, func(context.Context, string, []byte) (any, error)) {
	t.Helper()
	f, r, now := new(observe.Floods), rand.New(rand.NewPCG(seed, 1)), time.Now()
	packet := func() flood.Record {
		src := netip.AddrFrom4([4]byte{byte(11 + r.IntN(90)), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
		return flood.Record{
			Src: src.As16(), Dst: netip.MustParseAddr("203.0.113.10").As16(), IPv4: true, Protocol: 17, SrcPort: uint16(1024 + r.IntN(60000)),
			DstPort: 443, Length: uint16(60 + r.IntN(1200)), TTL: uint8(40 + r.IntN(80)), ID: uint16(r.Uint32()), Conversing: flood.Stranger,
		}
	}
	for i := range 16 {
		second := &observe.Second{Begin: now, End: now.Add(time.Second)}
		now = second.End
		for j := range 300 {
			p := packet()
			if j%10 == 0 {
				users(&p)
			}
			second.Records = append(second.Records, sampler.Record{Record: p, IP: true, Weight: 1})
		}
		for range 2700 {
			if p := packet(); flooded && i >= 14 {
				p.SrcPort, p.Length = 123, 468
				second.Records = append(second.Records, sampler.Record{Record: p, IP: true, Weight: 1})
			}
		}
		second.Packets = uint64(len(second.Records))
		if _, _, err := f.Second(second, func(verdict.Reason) bool { return false }); err != nil {
			t.Fatal(err)
		}
	}
	return f, func(_ context.Context, what string, question []byte) (any, error) {
		if what == wire.AskMeasure {
			return f.Measure(question)
		}
		p := f.Present()
		return api.NodeFloods{Floods: &p}, nil
	}
}

// Two nodes have different rules for a flood, since other traffic is usual at each. It is one line, which both see,
// and says what it hits at nodes without a flood.
func TestOneFloodWithTwoNames(t *testing.T) {
	f := newFleet(t)
	f.start("")
	users := map[string]func(*flood.Record){
		"edge-1": func(p *flood.Record) { p.SrcPort = 123 },
		"edge-2": func(p *flood.Record) { p.Length = 468 },
		"quiet":  func(p *flood.Record) { p.SrcPort, p.Length = 123, 76 },
		"server": func(p *flood.Record) { p.SrcPort, p.Length = 123, 468 },
	}
	found := make(map[string]string)
	for name, of := range users {
		floods, answers := sampling(t, uint64(len(name)), strings.HasPrefix(name, "edge"), of)
		if x := floods.Present().Now; x != nil && len(x.Rules) == 1 {
			found[name] = x.Rules[0].Pattern
		}
		f.answerer(name, answers)
	}
	if len(found) != 2 || found["edge-1"] == found["edge-2"] {
		t.Fatalf("found %q", found)
	}
	f.connected("edge-1", "edge-2", "quiet", "server")
	for _, nodes := range [][]string{{"edge-1", "edge-2", "quiet"}, nil} {
		got := f.floods(nodes)
		if len(got.Rules) != 1 {
			t.Fatalf("%+v", got.Rules)
		}
		r := got.Rules[0]
		if r.Pattern != found["edge-1"] || !slices.Equal(r.Nodes, []string{"edge-1", "edge-2"}) || !slices.Equal(r.Also, []string{found["edge-2"]}) || r.Measured != len(got.Nodes) {
			t.Errorf("%+v", r)
		}
		if hits := nodes == nil; r.Proposed != hits || hits != (r.Packets.Estimate() > 0.09) || hits != (r.Packets.Node == "server") {
			t.Errorf("of %v: proposed %v, it hits %v at %s", nodes, r.Proposed, r.Packets, r.Packets.Node)
		}
	}
}

// floods returns what nodes answer when all of them do: on a slow machine an answer may come too late.
func (f *fleet) floods(nodes []string) (got api.FleetFloods) {
	f.t.Helper()
	wait.Until(f.t, func() (err error) {
		got, err = f.hub.Floods(f.t.Context(), nodes)
		for _, n := range got.Nodes {
			if strings.Contains(n.Problem+n.Unmeasured, "no answer within") {
				err = errors.New(n.Node + ": " + n.Problem + n.Unmeasured)
			}
		}
		return err
	})
	return got
}

// What a rule hits is shown of the node where that is worst, whatever others claim. No node makes the rule of another
// one go. Nodes that do not measure are named.
func TestMeasure(t *testing.T) {
	f := newFleet(t)
	f.start("")
	const ntp, wide, dns = "udp length 468 sport 123", "udp", "udp sport 53"
	share := func(hits, of int) api.FloodShare { return api.FloodShare{Hits: hits, Of: of} }
	all, none := share(100, 100), share(0, 1)
	type rules map[string]wire.MeasuredRule
	nodes := map[string]struct {
		found    []string
		measured rules
		err      error
	}{
		"edge-1": {found: []string{ntp}, measured: rules{
			ntp:  {Flood: all, Packets: share(1, 600), Conversations: share(0, 300), For: []string{ntp}}, // of more hits, it is unsure
			wide: {Flood: all, Packets: share(300, 600), For: []string{ntp}}, dns: {Packets: share(0, 600)},
		}},
		"edge-2": {found: []string{dns}, measured: rules{
			ntp: {Flood: share(14, 100)}, wide: {Flood: all, Packets: share(1, 600), For: []string{dns}}, dns: {Flood: all, For: []string{dns}},
		}},
		"edge-3": {measured: rules{
			ntp: {Flood: share(15, 100), Packets: share(2, 600), Conversations: share(2, 300)}, wide: {}, dns: {Packets: share(6, 600)},
		}},
		"liar": {found: []string{wide}, measured: rules{
			ntp: {Packets: none, Conversations: share(-7, 1<<62), For: []string{ntp, dns}}, wide: {For: []string{ntp, dns, wide}},
			dns: {Packets: none, Conversations: none, For: []string{ntp, dns}},
		}},
		"old":   {found: []string{ntp}, err: errors.New(`weir 0.1.0 does not know what "measure" is: update it`)},
		"short": {}, // answers nothing, which says no more than a lie could
	}
	for name, n := range nodes {
		present := flooded(func() (all []api.FloodRule) {
			for _, text := range n.found {
				all = append(all, api.FloodRule{Pattern: text, Rate: 100})
			}
			return all
		})
		f.answerer(name, func(ctx context.Context, what string, question []byte) (any, error) {
			if what != wire.AskMeasure || n.err != nil {
				return present(ctx, what, question)
			}
			var asked []string
			if err := json.Unmarshal(question, &asked); err != nil {
				return nil, err
			}
			is := []wire.MeasuredRule{}
			for _, text := range asked {
				if m, ok := n.measured[text]; ok {
					is = append(is, m)
				}
			}
			if name == "liar" {
				is = append(is, is...)
			}
			return is, nil
		})
	}
	_, err := f.authority.Enroll("silent", nil, []string{f.broker.URL()})
	if err != nil {
		t.Fatal(err)
	}
	f.connected("edge-1", "edge-2", "edge-3", "liar", "old", "short")
	got := f.floods(nil)
	for _, n := range got.Nodes {
		want := map[string]string{"old": "asked for something else", "silent": "not connected"}[n.Node]
		if n.Unmeasured != want {
			t.Errorf("%s: %q, want %q", n.Node, n.Unmeasured, want)
		}
	}
	rule := func(pattern string) (r api.FleetFloodRule) {
		t.Helper()
		i := slices.IndexFunc(got.Rules, func(r api.FleetFloodRule) bool { return r.Pattern == pattern })
		if len(got.Rules) != 3 || i < 0 {
			t.Fatalf("no %s in %+v", pattern, got.Rules)
		}
		return got.Rules[i]
	}
	if r := rule(ntp); r.Measured != 5 || !slices.Equal(r.Nodes, []string{"edge-1", "edge-3", "liar", "old"}) || r.Proposed || r.Also != nil ||
		r.Packets.String() != "2 of 600" || r.Packets.Node != "edge-3" || r.Conversations.String() != "2 of 300" || r.Conversations.High < 2./300 {
		t.Errorf("%+v", r)
	}
	if r := rule(wide); !r.Proposed || r.Packets.String() != "300 of 600" || r.Packets.Node != "edge-1" {
		t.Errorf("%+v", r)
	}
	if r := rule(dns); !r.Proposed || r.Packets.Node != "edge-3" {
		t.Errorf("%+v", r)
	}
}

// Nodes are asked to measure no more than they would: of more rules, the largest, and the others stay as they are.
func TestMeasureBounds(t *testing.T) {
	f := newFleet(t)
	f.start("")
	var names []string
	asked := make(chan []string, 1)
	for i := range wire.MaxMeasured/flood.MaxRules + 1 {
		present := flooded(func() (all []api.FloodRule) {
			for j := range flood.MaxRules {
				all = append(all, api.FloodRule{Pattern: fmt.Sprintf("udp sport %d", 100+10*i+j), Rate: float64(i)})
			}
			return all
		})
		name := fmt.Sprintf("edge-%d", i+1)
		names = append(names, name)
		f.answerer(name, func(ctx context.Context, what string, question []byte) (any, error) {
			if what != wire.AskMeasure {
				return present(ctx, what, question)
			}
			var patterns []string
			err := json.Unmarshal(question, &patterns)
			select {
			case asked <- patterns:
			default:
			}
			return []wire.MeasuredRule{}, err
		})
	}
	f.connected(names...)
	got := f.floods(nil)
	if patterns := <-asked; len(patterns) != wire.MaxMeasured || slices.Contains(patterns, "udp sport 100") {
		t.Errorf("asked for %q", patterns)
	}
	if n := wire.MaxMeasured + flood.MaxRules; len(got.Rules) != n || got.Rules[0].Measured != len(names) || got.Rules[n-1].Measured != 0 {
		t.Errorf("%+v", got.Rules)
	}
}
