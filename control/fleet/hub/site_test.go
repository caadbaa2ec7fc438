package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/control/api"
	"weir/control/config"
	"weir/control/fleet/broker"
	"weir/control/fleet/wire"
	"weir/filter/key"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// Nodes of a site are asked, and ask, through the site's server.
func TestQuestionsOfSite(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.sites = lab.FreeAddress(t)
	file := filepath.Join(f.dir, "drop.txt")
	if err := os.WriteFile(file, []byte("192.0.2.0/24\n198.51.100.0/24\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.start("lists: {drop: {sources: [{file: " + file + "}], interval: 1h}}\n")
	listen := lab.FreeAddress(t)
	e, err := f.authority.EnrollSite("paris", []string{"tls://" + listen}, []string{"tls://" + f.sites})
	if err != nil {
		t.Fatal(err)
	}
	site, err := broker.StartSite(broker.SiteOptions{Enrollment: e, Dir: t.TempDir(), Listen: listen, Log: testLog()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := site.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	leave := sync.OnceFunc(func() { cancel(); running.Wait(); site.Close() })
	t.Cleanup(leave)

	banks := counting(t)
	for i := range uint64(1000) {
		banks[0].Count(source(i%3), 100)
	}
	explain := says(api.NewExplanation("", api.Answer{Verdict: api.VerdictDrop, Matches: []api.Match{
		{List: "fleet.drop", Entry: "198.51.100.0/24", Source: wire.Source, Action: "block"},
	}}))
	answers := func(ctx context.Context, what string, question []byte) (any, error) {
		switch what {
		case wire.AskHeavy:
			return heavyHost(banks)(ctx, what, question)
		case wire.AskTrace:
			var q api.TraceQuestion
			err := json.Unmarshal(question, &q)
			return api.Traced{Interfaces: []api.TracedInterface{{Name: "eth0", Packets: make([]api.TracedPacket, len(q.Packets))}}}, err
		}
		return explain(ctx, what, question)
	}
	a := f.answererAt("tls://"+listen, "edge-1", answers)
	f.answerer("direct", answers)
	f.connected("edge-1", "direct")

	wait.Until(t, func() error { // once the hub has read the list
		explained, err := f.hub.Explain(t.Context(), nil, "198.51.100.7")
		if err != nil || len(explained.Nodes) != 2 {
			return fmt.Errorf("%+v, %v", explained, err)
		}
		for _, n := range explained.Nodes {
			if n.Explanation == nil || n.Explanation.Answers[0].Matches[0].Line != 2 {
				return fmt.Errorf("explain: %+v", n)
			}
		}
		return nil
	})
	top, err := f.hub.Top(t.Context(), nil, api.FleetTopQuestion{Key: "src", Unit: "packets", Share: 0.01})
	if err != nil || len(top.Flows) != 3 || top.Rate != 2000 {
		t.Errorf("top: %+v, %v", top, err)
	}
	traced, err := f.hub.Trace(t.Context(), nil, api.TraceQuestion{Packets: []api.TraceAbout{{Data: datagram(1)}}})
	if err != nil || len(traced.Nodes) != 2 {
		t.Fatalf("%+v, %v", traced, err)
	}
	for _, n := range traced.Nodes {
		if n.Traced == nil || len(n.Traced.Interfaces) != 1 {
			t.Errorf("trace: %+v", n)
		}
	}

	// What the node asks the hub.
	wait.Until(t, func() error {
		for _, l := range a.node.Lists() {
			if l.Name() == "drop" {
				o := l.Find([]key.Key{key.Source(netip.MustParsePrefix("198.51.100.0/24"))})
				if o[0].Line != 2 {
					return fmt.Errorf("%+v", o)
				}
				return nil
			}
		}
		return fmt.Errorf("the node does not have the list")
	})

	// Without the site's server, its nodes are named at once, and the others answer.
	leave()
	wait.Until(t, func() error {
		began := time.Now()
		e, err := f.hub.Explain(t.Context(), nil, "198.51.100.7")
		if err != nil {
			return err
		}
		direct, gone := e.Nodes[0], e.Nodes[1]
		if direct.Explanation == nil || gone.Problem != "not connected" || time.Since(began) > patience {
			return fmt.Errorf("after %v: %+v", time.Since(began), e.Nodes)
		}
		return nil
	})
}

// A site's mirror has of each list what the hub's stream has: two snapshots and the changes since, one
// catalog and one account.
func TestMirrorSize(t *testing.T) {
	long.Unraced(t)
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.sites = lab.FreeAddress(t)
	f.start("lists: {}\n")
	e, err := f.authority.EnrollSite("paris", []string{"tls://127.0.0.1:4222"}, []string{"tls://" + f.sites})
	if err != nil {
		t.Fatal(err)
	}
	site, err := broker.StartSite(broker.SiteOptions{Enrollment: e, Dir: t.TempDir(), Listen: "127.0.0.1:0", Log: testLog()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = site.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait(); site.Close() })

	state := func(connect []nats.Option, token, seed string) func() (jetstream.StreamState, error) {
		c, err := nats.Connect("", append(connect, nats.UserJWTAndSeed(token, seed))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		js, err := jetstream.New(c)
		if err != nil {
			t.Fatal(err)
		}
		return func() (s jetstream.StreamState, err error) {
			stream, err := js.Stream(t.Context(), wire.Stream)
			if err != nil {
				return s, err
			}
			info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(">"))
			if err != nil {
				return s, err
			}
			return info.State, nil
		}
	}
	token, seed, err := f.authority.OwnStream()
	if err != nil {
		t.Fatal(err)
	}
	atHub, atSite := state(f.broker.Options(), token, seed), state(site.Options(), e.Own.JWT, e.Own.Seed)
	caughtUp := func() (hub, mirror jetstream.StreamState, err error) {
		if hub, err = atHub(); err == nil {
			mirror, err = atSite()
		}
		if err == nil && mirror.LastSeq < hub.LastSeq {
			err = fmt.Errorf("the mirror is at %d, the hub at %d", mirror.LastSeq, hub.LastSeq)
		}
		return hub, mirror, err
	}
	wait.Until(t, func() error { _, _, err := caughtUp(); return err }) // it follows

	const snapshots, changes = 6, 204
	for i := range changes {
		f.change(block(fmt.Sprintf("198.51.%d.%d", 100+i/100, i%100)))
		if (i+1)%(changes/snapshots) != 0 {
			continue
		}
		if err := f.hub.Do(t.Context(), func() error { return f.hub.lists.get(config.FleetBlock).history.Rebase() }); err != nil {
			t.Fatal(err)
		}
		f.change(block(fmt.Sprintf("203.0.113.%d", i)))
	}
	wait.Until(t, func() error {
		hub, mirror, err := caughtUp()
		if err != nil {
			return err
		}
		if mirror.Msgs > hub.Msgs+2 {
			return fmt.Errorf("the mirror has %d messages, the hub %d:\n%v\n%v", mirror.Msgs, hub.Msgs, mirror.Subjects, hub.Subjects)
		}
		return nil
	})

	// A node that knows nothing is brought up by the mirror.
	n, err := f.authority.Enroll("edge-1", nil, []string{site.URL()})
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.connect(n)
	if err != nil {
		t.Fatal(err)
	}
	w := f.follower(n, c)
	wait.Until(t, func() error {
		have, _, _, err := w.read(config.FleetBlock)
		if err == nil && have.Len() != changes+snapshots {
			err = fmt.Errorf("%d entries", have.Len())
		}
		return err
	})
}
