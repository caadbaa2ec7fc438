package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/api"
	"weir/control/feed"
	fleetnode "weir/control/fleet/node"
	"weir/control/fleet/wire"
	"weir/filter/key"
	"weir/tests/wait"
)

// answerer is a node that answers.
type answerer struct {
	sink
	answers func(ctx context.Context, what string, question []byte) (any, error)
}

func (h *answerer) Answer(ctx context.Context, what string, question []byte) (any, error) {
	return h.answers(ctx, what, question)
}

// answerer starts a node, and waits until it can be asked.
func (f *fleet) answerer(name string, answers func(ctx context.Context, what string, question []byte) (any, error)) *answerer {
	f.t.Helper()
	return f.answererAt(f.broker.URL(), name, answers)
}

// answererAt is answerer for a node that connects to some server.
func (f *fleet) answererAt(server, name string, answers func(ctx context.Context, what string, question []byte) (any, error)) *answerer {
	f.t.Helper()
	e, err := f.authority.Enroll(name, nil, []string{server})
	if err != nil {
		f.t.Fatal(err)
	}
	n, err := fleetnode.Open(fleetnode.Config{Enrollment: e, Version: "test", Log: testLog()})
	if err != nil {
		f.t.Fatal(err)
	}
	h := &answerer{sink{n}, answers}
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan error)
	go func() { done <- n.Run(ctx, h) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	})
	return h
}

// connected waits until nodes can be asked.
func (f *fleet) connected(nodes ...string) {
	f.t.Helper()
	for _, name := range nodes {
		wait.Until(f.t, func() error {
			conn := f.hub.asker.connection()
			if conn == nil {
				return errNoBroker
			}
			_, err := askOne(f.t.Context(), conn, name, "nothing", []byte("{}"), patience)
			if err != nil && strings.Contains(err.Error(), "not connected") {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
}

// says answers with an explanation.
func says(e api.Explanation) func(context.Context, string, []byte) (any, error) {
	return func(_ context.Context, what string, question []byte) (any, error) {
		if what != wire.AskExplain {
			return nil, errors.New("asked for something else")
		}
		var q wire.ExplainQuestion
		err := json.Unmarshal(question, &q)
		answer := e // of this node alone
		answer.Question = q.Packets
		return answer, err
	}
}

// Each node that does not answer, or not as it should, is named, with the reason. The
// others' answers are there in time.
func TestAsk(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	drop := api.NewExplanation("", api.Answer{Verdict: api.VerdictDrop, Reason: "blocked"})
	f.answerer("good", says(drop))
	f.answerer("failing", func(context.Context, string, []byte) (any, error) { return nil, errors.New("out of order") })
	f.answerer("large", func(context.Context, string, []byte) (any, error) { return strings.Repeat("x", wire.MaxAnswer), nil })
	gone, c := f.enroll("gone")
	c.Close()
	revoked, c := f.enroll("revoked")
	c.Close()
	if err := f.authority.Revoke(revoked.Name); err != nil {
		t.Fatal(err)
	}
	raw := func(name string, answer func(c *nats.Conn, m *nats.Msg)) {
		t.Helper()
		_, c := f.enroll(name)
		if _, err := c.Subscribe(wire.QuestionsSubject(name), func(m *nats.Msg) {
			if !strings.HasSuffix(m.Subject, ".nothing") {
				answer(c, m)
			} else {
				_ = m.Respond(nil)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	replies := make(chan string, 1)
	raw("silent", func(_ *nats.Conn, m *nats.Msg) { replies <- m.Reply })
	raw("garbage", func(_ *nats.Conn, m *nats.Msg) { _ = m.Respond([]byte("{")) })
	raw("empty", func(_ *nats.Conn, m *nats.Msg) { _ = m.Respond([]byte("{}")) })
	raw("huge", func(_ *nats.Conn, m *nats.Msg) { _ = m.Respond(bytes.Repeat([]byte(" "), wire.MaxAnswer+1)) })
	raw("other", func(_ *nats.Conn, m *nats.Msg) { _ = m.Respond([]byte(`{"answer": {"verdict": "eat"}}`)) })
	raw("liar", func(c *nats.Conn, m *nats.Msg) { // it answers for another, too
		answer := wire.MarshalAnswer(drop, nil)
		_ = c.Publish(<-replies, answer)
		_ = m.Respond(answer)
	})
	f.connected("good", "failing", "large", "silent", "garbage", "empty", "huge", "other", "liar")
	want := map[string]string{
		"good": "", "failing": "out of order", "large": "ask for less", gone.Name: "not connected", "silent": "no answer within 3s", "garbage": "cannot be read",
		"empty": "is empty", "huge": "want at most", "other": "invalid answer", "liar": "",
	}
	wait.Until(t, func() error { // on a slow machine an answer may come too late
		e, err := f.hub.Explain(t.Context(), nil, "192.0.2.1")
		named := make(map[string]bool)
		for _, n := range e.Nodes {
			if problem, ok := want[n.Node]; !ok || !strings.Contains(n.Problem, problem) || (problem == "") != (n.Problem == "") || (n.Problem == "") != (n.Explanation != nil) {
				err = errors.Join(err, fmt.Errorf("%s: %q, want %q", n.Node, n.Problem, problem))
			}
			named[n.Node] = true
		}
		if len(named) < len(want) {
			err = errors.Join(err, fmt.Errorf("not all are named: %v", named))
		}
		return err
	})
	if _, err := f.hub.Explain(t.Context(), []string{"stranger"}, "192.0.2.1"); err == nil || !strings.Contains(err.Error(), `no node "stranger"`) {
		t.Error(err)
	}
	if _, err := f.hub.Explain(t.Context(), []string{"revoked"}, "192.0.2.1"); err == nil || !strings.Contains(err.Error(), "is revoked") {
		t.Error(err)
	}
	if e, err := f.hub.Explain(t.Context(), []string{"good"}, "192.0.2.1"); err != nil || len(e.Nodes) != 1 || !e.Nodes[0].Explanation.Drops() {
		t.Errorf("%+v, %v", e, err)
	}
}

// A node that is asked more than it can answer refuses, and goes on.
func TestAskTooMuch(t *testing.T) {
	f := newFleet(t)
	f.start("")
	hold := make(chan struct{})
	asked := make(chan struct{}, 1)
	f.answerer("slow", func(ctx context.Context, _ string, _ []byte) (any, error) {
		select {
		case asked <- struct{}{}:
		default:
		}
		select {
		case <-hold:
		case <-ctx.Done():
		}
		return 1, nil
	})
	f.connected() // the hub
	wait.Until(t, func() error {
		if f.hub.asker.connection() == nil {
			return errNoBroker
		}
		return nil
	})
	wait.Until(t, func() error { // it is connected
		_, err := askOne(t.Context(), f.hub.asker.connection(), "slow", "x", nil, 10*time.Millisecond)
		select {
		case <-asked:
			return nil
		default:
			return err
		}
	})
	// A server that makes its accounts anew loses what it is asked meanwhile.
	wait.Until(t, func() error {
		const n = 60
		results := make(chan error)
		for range n {
			go func() {
				_, err := askOne(t.Context(), f.hub.asker.connection(), "slow", "x", nil, 2*time.Second)
				results <- err
			}()
		}
		refused := 0
		for range n { // some are being answered, some wait
			if err := <-results; err != nil && strings.Contains(err.Error(), "too many questions") {
				refused++
			}
		}
		if refused < 30 {
			return fmt.Errorf("%d of %d refused", refused, n)
		}
		return nil
	})
	close(hold)
	wait.Until(t, func() error {
		_, err := askOne(t.Context(), f.hub.asker.connection(), "slow", "x", nil, 5*time.Second)
		return err
	})
}

// The hub and its nodes name the file and the line of an entry, and who has blocked it.
func TestOrigins(t *testing.T) {
	f := newFleet(t)
	file := filepath.Join(f.dir, "drop.txt")
	if err := os.WriteFile(file, []byte("# ours\n192.0.2.1\n198.51.100.0/24\n> 203.0.113.1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f.start("lists: {drop: {sources: [{file: " + file + "}], interval: 1h}}\n")
	var e []api.Match
	for _, m := range [][3]string{
		{"fleet.drop", "198.51.100.0/24", wire.Source}, {"fleet.block", "192.0.2.7", wire.Source}, {"own", "192.0.2.7", "own.txt"},
		{"fleet.none", "192.0.2.7", wire.Source}, {"fleet.drop", "nonsense\x1b[2J", wire.Source}, {"fleet.drop", "192.0.2.99", wire.Source}, {"fleet.drop", "> 203.0.113.1", wire.Source},
	} {
		e = append(e, api.Match{List: m[0], Entry: m[1], Source: m[2], Action: "block"})
	}
	h := f.answerer("edge-1", says(api.NewExplanation("", api.Answer{Verdict: api.VerdictDrop, Matches: e})))
	if changed := f.change(api.Change{Action: api.Block, Entries: []string{"192.0.2.7"}, Reason: "scans ssh"}); changed.List != "block" {
		t.Errorf("%+v", changed)
	}
	f.connected("edge-1")
	asked, err := f.hub.Explain(t.Context(), nil, "198.51.100.7")
	if err != nil || asked.Nodes[0].Explanation == nil {
		t.Fatalf("%+v, %v", asked, err)
	}
	got := asked.Nodes[0].Explanation.Answers[0].Matches
	for i, want := range []api.Match{
		{Source: file, Line: 3}, {Source: wire.Source, Reason: "scans ssh"}, {Source: "own.txt"}, {Source: wire.Source}, {Source: wire.Source}, {Source: wire.Source},
		{Source: file, Line: 4},
	} {
		if got[i].Source != want.Source || got[i].Line != want.Line || got[i].Reason != want.Reason || (got[i].Added != nil) != (want.Reason != "") {
			t.Errorf("%d: %+v, want %+v", i, got[i], want)
		}
	}

	// The node itself.
	find := func(list string, entries ...string) (all []feed.Origin) {
		var keys []key.Key
		for _, text := range entries {
			keys = append(keys, key.Source(netip.MustParsePrefix(text)))
		}
		for _, l := range h.node.Lists() {
			if l.Name() == list {
				all = l.Find(keys)
			}
		}
		return all
	}
	wait.Until(t, func() error {
		if o := find("drop", "192.0.2.99/32", "198.51.100.0/24"); len(o) < 2 || o[0].Source != "" || o[1].Source != wire.Source+": "+file || o[1].Line != 3 {
			return fmt.Errorf("%+v", o)
		}
		if o := find("block", "192.0.2.7/32"); len(o) < 1 || o[0].Source != wire.Source || o[0].Reason != "scans ssh" || o[0].Added.IsZero() {
			return fmt.Errorf("%+v", o)
		}
		return nil
	})
	f.stop()
	if o := find("drop", "198.51.100.0/24"); o[0].Source != wire.Source || o[0].Line != 0 {
		t.Errorf("without a hub: %+v", o)
	}
}

// One question of a node waits or is answered: it does not hold up those of others.
func TestOriginsOfOneNode(t *testing.T) {
	began, goOn := make(chan string), make(chan struct{})
	a := newAsker(&dialer{log: testLog()}, func(_ context.Context, list string, _ []key.Key) ([]wire.Origin, error) {
		began <- list
		<-goOn
		return nil, nil
	}, nil)
	ask := func(node string) {
		a.asked(&nats.Msg{Subject: wire.OriginSubject(node), Reply: "_INBOX." + node + ".x", Data: []byte(`{"list":"` + node + `"}`)})
	}
	answer := func() {
		m := <-a.origins
		go a.answer(t.Context(), m)
		<-began
	}
	for range 5 {
		ask("edge-1")
	}
	ask("edge-2")
	if len(a.origins) != 2 || a.declined.Load() != 4 {
		t.Errorf("%d questions wait, %d are declined, want 2 and 4", len(a.origins), a.declined.Load())
	}
	answer()
	ask("edge-1") // while its first one is answered
	if len(a.origins) != 1 {
		t.Errorf("%d questions wait, want 1", len(a.origins))
	}
	close(goOn)
	wait.For(t, "the next question of the node waits", func() bool { ask("edge-1"); return len(a.origins) == 2 })
}

// A node cannot make the hub publish where the node itself may not, or take all of its
// time.
func TestHostileOrigins(t *testing.T) {
	f := newFleet(t)
	f.start("")
	a := f.hub.asker
	ask := func(node, reply string) *nats.Msg { return &nats.Msg{Subject: wire.OriginSubject(node), Reply: reply} }
	now := time.Now()
	for _, reply := range []string{"", wire.CatalogSubject(), "$JS.API.STREAM.DELETE." + wire.Stream, "_INBOX.edge-2.x", "_INBOX.edge-1", "_INBOX.edge-1.>", "_INBOX.edge-1.*"} {
		if a.mayAsk(ask("edge-1", reply), now) {
			t.Errorf("answered to %q", reply)
		}
	}
	allowed := 0
	for range 100 {
		if a.mayAsk(ask("edge-1", "_INBOX.edge-1.x"), now) {
			allowed++
			a.end(ask("edge-1", ""))
		}
	}
	if allowed != originBurst || !a.mayAsk(ask("edge-2", "_INBOX.edge-2.x"), now) || !a.mayAsk(ask("edge-1", "_INBOX.edge-1.x"), now.Add(originEvery)) {
		t.Errorf("%d questions at once", allowed)
	}
	for _, text := range []string{"", "{", `{"list":"block","keys":["AA=="]}`, `{"list":"none","keys":[]}`, fmt.Sprintf(`{"list":"block","keys":[%s""]}`, strings.Repeat(`"",`, wire.MaxOrigins))} {
		if _, err := a.origin(t.Context(), []byte(text)); err == nil {
			t.Errorf("%q is answered", text)
		}
	}

	// Over the broker: the deletion of the stream is not published by the hub.
	_, c := f.enroll("edge-1")
	m := ask("edge-1", "$JS.API.STREAM.DELETE."+wire.Stream)
	m.Data = []byte(`{"list":"block","keys":[]}`)
	if err := c.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	if changed := f.change(block("192.0.2.1")); !changed.Published {
		t.Error("the stream is gone")
	}
}
