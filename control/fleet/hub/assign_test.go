package hub

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/fleet/enrollment"
	"weir/control/list"
	"weir/tests/lab"
	"weir/tests/wait"
)

// hostOf enrolls a host at a site, or at the hub for "", and starts it.
func (f *fleet) hostOf(site, name string, labels ...string) *host {
	f.t.Helper()
	e, err := f.authority.EnrollAt(site, name, labels, f.hub.conf().Servers)
	if err != nil {
		f.t.Fatal(err)
	}
	h := &host{t: f.t, name: name, sets: make(map[string]*list.Set), enrollment: e, dir: f.t.TempDir()}
	f.follow(h)
	return h
}

// label changes the labels of a node, and waits until it reports them.
func (f *fleet) label(name string, add, remove []string) {
	f.t.Helper()
	if _, err := f.authority.Label(name, add, remove); err != nil {
		f.t.Fatal(err)
	}
	f.labelled(name, f.member(name).Labels...)
}

// labelled waits until a node reports labels.
func (f *fleet) labelled(name string, labels ...string) {
	f.t.Helper()
	wait.For(f.t, name+" reports its labels", func() bool {
		s := f.nodeStatus(name)
		return s != nil && s.Settings != nil && slices.Equal(s.Settings.Labels, labels)
	})
}

// nodeStatus returns the last report of a node, nil if there is none.
func (f *fleet) nodeStatus(name string) *api.NodeStatus {
	f.t.Helper()
	s, err := f.hub.Fleet(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	for _, n := range s.Nodes {
		if n.Name == name {
			return n.Report
		}
	}
	return nil
}

// problem waits until the hub has a problem with some words, or for "", until it has none.
func (f *fleet) problem(words ...string) {
	f.t.Helper()
	wait.For(f.t, "the problem: "+strings.Join(words, " … "), func() bool {
		s, err := f.hub.Fleet(f.t.Context())
		if err != nil {
			f.t.Fatal(err)
		}
		text := strings.Join(s.Problems, "\n")
		return len(words) == 0 && !strings.Contains(text, "labels and servers") ||
			len(words) > 0 && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
	})
}

// A node with a new label has the same lists as others with it, also after a start without the hub, and by the same
// file. One that has lost it has not.
func TestLabels(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.reserve()
	f.start(strings.Replace(inWaves(f.feed("192.0.2.1"), "{labels: [canary], for: 1h}"), "rollout: {", "rollout: {first: at_once, ", 1))
	rome, oslo := f.hostOf("", "rome-1", "web"), f.hostOf("", "oslo-1", "canary")
	file := rome.enrollment
	rome.becomes("drop", "192.0.2.1")
	oslo.becomes("drop", "192.0.2.1")
	f.label("rome-1", []string{"canary"}, []string{"web"})
	f.label("oslo-1", nil, []string{"canary"})
	f.feed("192.0.2.2")
	rome.becomes("drop", "192.0.2.2")
	if oslo.had("192.0.2.2") {
		t.Error("a node without the label has what is for nodes with it")
	}
	rome.stop()
	f.stop()
	rome = f.again(rome)
	if got, err := rome.enrollment.Marshal(); err != nil || !bytes.Equal(got, marshal(t, file)) {
		t.Errorf("its file is another one, %v", err)
	}
	f.feed("192.0.2.3")
	f.start(strings.Replace(inWaves(filepath.Join(f.dir, "feed"), "{labels: [canary], for: 1h}"), "rollout: {", "rollout: {first: at_once, ", 1))
	f.labelled("rome-1", "canary")
	if !slices.ContainsFunc(f.hub.Audit(50), func(r api.AuditRecord) bool {
		return r.Change == audit.Label && slices.Equal(r.First, []string{"rome-1"}) && r.Reason == "canary"
	}) {
		t.Errorf("the audit: %+v", f.hub.Audit(50))
	}
	f.problem()
}

func marshal(t *testing.T, n enrollment.Node) []byte {
	t.Helper()
	text, err := n.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Nodes follow the hub to other servers, once these let them in, and stay where they are before that.
func TestServersMove(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.reserve()
	next := newBalancer(t, f.listen)
	f.start("")
	one := f.hostOf("", "rome-1")
	file := f.host("oslo-1") // by its file
	f.change(block("192.0.2.1"))
	f.converged([]*host{one, file})

	f.stop()
	closed := "tls://" + lab.FreeAddress(t)
	f.start("", closed)
	f.problem("1 nodes do not have", "rome-1", closed)
	f.change(block("192.0.2.2"))
	f.converged([]*host{one, file})

	f.stop()
	f.start("", "tls://"+next.address)
	wait.For(t, "the node to move", func() bool {
		s := f.nodeStatus("rome-1")
		return s != nil && slices.Equal(s.Settings.Servers, []string{"tls://" + next.address})
	})
	f.problem()
	f.change(block("192.0.2.3"))
	f.converged([]*host{one, file})
	if s := f.nodeStatus("oslo-1"); s == nil || slices.Contains(s.Settings.Servers, "tls://"+next.address) {
		t.Errorf("a node that has its servers by its file: %+v", s)
	}
	one.stop()
	one = f.again(one)
	f.change(block("192.0.2.4"))
	f.converged([]*host{one, file})
}

// A hub whose keys are of an older copy takes later labels back from the node that has them.
func TestLabelsTakenBack(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	h := f.hostOf("", "rome-1", "web")
	wait.For(t, "a report", func() bool { return f.nodeStatus("rome-1") != nil })
	f.copyOf("keys/nodes", "older")
	f.label("rome-1", []string{"canary"}, nil)
	if err := os.RemoveAll(filepath.Join(f.dir, "keys/nodes")); err != nil {
		t.Fatal(err)
	}
	f.copyOf("older", "keys/nodes")
	wait.For(t, "the labels to come back", func() bool { return slices.Equal(f.member("rome-1").Labels, []string{"web", "canary"}) })
	f.labelled("rome-1", "web", "canary")
	f.label("rome-1", nil, []string{"web", "canary"})
	f.problem()
	h.stop()
}
