package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/fleet/wire"
	"weir/tests/wait"
)

// flooded answers for a node that sees a flood with rules, which may change with each question.
func flooded(rules func() []api.FloodRule) func(context.Context, string, []byte) (any, error) {
	return func(_ context.Context, what string, _ []byte) (any, error) {
		if what != wire.AskFloods {
			return nil, errors.New("asked for something else")
		}
		f := api.Floods{Time: time.Now(), Sampled: true, Quiet: 24, Rate: 100, Usual: 10, Past: []api.Flood{}}
		if all := rules(); all != nil {
			f.Now = &api.Flood{Begin: time.Now(), Kind: api.FloodRuled, Rate: 100, Rules: all}
		}
		return api.NodeFloods{Node: "another", Floods: &f}, nil
	}
}

// What several nodes have found is one line, with what it would hit where that is most. What cannot be true
// of a node's answer is left out, and named.
func TestFloods(t *testing.T) {
	f := newFleet(t)
	f.start("")
	const ntp = "udp length 468 sport 123"
	hits := func(n int) api.FloodShare {
		return api.FloodShare{Hits: n, Of: 6120}
	}
	says := map[string][]api.FloodRule{
		"edge-1": {{Pattern: ntp, Rate: 100, Conversations: hits(1), Packets: hits(5), Name: "NTP answers"}},
		"edge-2": {{Pattern: ntp, Rate: 200, Conversations: hits(2), Packets: hits(4), Proposed: true}, {Pattern: "tcp of 1 sources", Rate: 250, Addresses: []string{"192.0.2.1"}, Proposed: true}},
		"edge-3": {{Pattern: "tcp of 2 sources", Rate: 150, Addresses: []string{"192.0.2.3", "192.0.2.1"}, Proposed: true}},
		"quiet":  nil,
		"many":   slices.Repeat([]api.FloodRule{{Pattern: ntp}}, 5),
		"absurd": {{Pattern: ntp, Rate: 1e300}},
		"other":  {{Pattern: "udp length 468 and all users"}},
	}
	names := []string{"absurd", "edge-1", "edge-2", "edge-3", "many", "other", "quiet"}
	for _, name := range names {
		f.answerer(name, flooded(func() []api.FloodRule { return says[name] }))
	}
	f.connected(names...)
	var got api.FleetFloods
	wait.Until(t, func() (err error) { // on a slow machine an answer may come too late
		got, err = f.hub.Floods(t.Context(), nil)
		for _, n := range got.Nodes {
			bad := map[string]string{"many": "5 rules", "absurd": "1e+300 packets a second", "other": "is no field of a pattern"}[n.Node]
			if (bad == "") != (n.Problem == "") || !strings.Contains(n.Problem, bad) || (n.Floods == nil) != (bad != "") {
				err = errors.Join(err, fmt.Errorf("%s: %q, want %q", n.Node, n.Problem, bad))
			}
		}
		return err
	})
	if len(got.Nodes) != len(names) || got.Nodes[1].Node != "edge-1" || len(got.Rules) != 2 {
		t.Fatalf("%+v", got)
	}
	sources, pattern := got.Rules[0], got.Rules[1]
	if sources.Pattern != "tcp of 2 sources" || sources.Rate != 400 || !sources.Proposed || !slices.Equal(sources.Addresses, []string{"192.0.2.1", "192.0.2.3"}) {
		t.Errorf("%+v", sources)
	}
	if pattern.Pattern != ntp || pattern.Rate != 300 || pattern.Proposed || pattern.Name != "NTP answers" || !slices.Equal(pattern.Nodes, []string{"edge-1", "edge-2"}) ||
		pattern.Conversations.Hits != 2 || pattern.Packets.Hits != 5 {
		t.Errorf("%+v", pattern)
	}
	if some, err := f.hub.Floods(t.Context(), []string{"quiet"}); err != nil || len(some.Nodes) != 1 || len(some.Rules) != 0 {
		t.Errorf("%+v, %v", some, err)
	}
}

// What a command publishes is on disk first, and bounded. What it ends stays among what is published, for
// nodes that are away, until its time is over.
func TestPatterns(t *testing.T) {
	f := newFleet(t)
	f.start("")
	change := func(c api.FleetFloodsChange, want string) {
		t.Helper()
		if _, err := f.hub.ChangeFloods(t.Context(), c); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
	published := func() (live, ended int) {
		t.Helper()
		if err := f.hub.Do(t.Context(), func() error {
			ended = len(f.hub.patterns.current(time.Now()))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		s, err := f.hub.Fleet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.Patterns, ended - s.Patterns
	}
	port := func(n int) string { return fmt.Sprintf("udp sport %d", n) }
	change(api.FleetFloodsChange{Patterns: []string{"ttl 3"}, For: 60}, "names a protocol, or a destination")
	change(api.FleetFloodsChange{Patterns: []string{"users"}, For: 60}, "no field")
	change(api.FleetFloodsChange{Patterns: []string{port(1)}, Off: true}, "no such pattern")
	change(api.FleetFloodsChange{Patterns: []string{port(1)}, For: 3600}, "")
	change(api.FleetFloodsChange{Patterns: []string{port(1)}, For: 60, Trial: 60}, "is published already")
	change(api.FleetFloodsChange{Patterns: []string{port(1)}, For: 7200}, "") // another end
	for round := range 3 {
		var all []string
		for i := range api.MaxFleetPatterns {
			all = append(all, port(100+16*round+i))
		}
		change(api.FleetFloodsChange{Patterns: all, For: 3600}, map[bool]string{true: "17 patterns"}[round == 0])
		change(api.FleetFloodsChange{Off: true}, "")
	}
	if live, ended := published(); live != 0 || ended != 33 {
		t.Errorf("%d patterns, and %d that have ended", live, ended)
	}
	change(api.FleetFloodsChange{Patterns: []string{port(1)}, For: 3600}, "")
	if err := f.hub.Do(t.Context(), func() error { f.hub.patterns.path += "/x"; return nil }); err != nil {
		t.Fatal(err)
	}
	change(api.FleetFloodsChange{Patterns: []string{port(2)}, For: 3600}, "not a directory")
	f.stop()
	f.start("")
	if live, ended := published(); live != 1 || ended != 32 {
		t.Errorf("after a restart: %d patterns, and %d that have ended", live, ended)
	}
}
