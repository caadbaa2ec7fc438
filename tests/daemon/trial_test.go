package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/key"
	"weir/tests/long"
	"weir/tests/wait"
)

// toPort is a packet like from's to a port, or of another protocol.
func toPort(t key.Tuple, proto uint8, port uint16) key.Tuple {
	t.Proto, t.DstPort, t.HasPorts = proto, port, key.HasPorts(proto)
	if !t.HasPorts {
		t.SrcPort, t.DstPort = 0, 0
	}
	return t
}

// Lists with ports, protocols and interfaces drop what they are for, and nothing else; one on
// trial drops nothing, and hides nothing; the example of docs/lists.md lets in who may.
func TestListsForCertainPackets(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const lists = `max_coverage: 100%%
lists:
  others: {entries: [0.0.0.0/0], ports: [tcp/22]%s}
  admins: {action: allow, entries: [192.0.2.0/24]}
  voip: {entries: [198.51.100.1], ports: [udp/5000-5010], protocols: [udp, icmp]}
  elsewhere: {entries: [198.51.100.2], interfaces: ['other*']}
  trial: {entries: [203.0.113.1, 203.0.113.2, 203.0.113.3], enforce: false}
  wide: {entries: [203.0.113.2/31], protocols: [udp]}
  ranges: {entries: ["udp 198.51.100.3:* > *:7000-7010", "tcp 198.51.100.3:40000-40009 > *:81-82"]}
`
	configure := func(args ...any) {
		h.write("weir.yaml", fmt.Appendf(nil, "interfaces: [{name: %q, netns: %s}, {name: 'other*', netns: %[2]s}]\npins: %s\nstate_dir: %s\napi: {socket: %s}\n",
			h.B.Iface, h.B.Netns, h.pins, h.path("state"), h.path("weir.sock")))
		f, err := os.OpenFile(h.path("weir.yaml"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fmt.Fprintf(f, lists, args...)
	}
	configure("")
	load := startTraffic(h.t, h.Lab, nil, froms(netip.MustParseAddr("10.0.0.1")))
	d := h.start(releases[0])
	a := func(s string) key.Tuple { return from(netip.MustParseAddr(s)) }
	load.expect("SSH from others", false, toPort(a("198.51.100.9"), 6, 22), toPort(a("203.0.113.1"), 6, 22))
	load.expect("SSH from admins, and all else", true, toPort(a("192.0.2.9"), 6, 22), toPort(a("198.51.100.9"), 6, 23), toPort(a("198.51.100.9"), 17, 22))
	load.expect("VoIP and ICMP of the list", false, toPort(a("198.51.100.1"), 17, 5000), toPort(a("198.51.100.1"), 17, 5010), toPort(a("198.51.100.1"), 1, 0))
	load.expect("other packets of the list", true, toPort(a("198.51.100.1"), 17, 5011), toPort(a("198.51.100.1"), 17, 4999), toPort(a("198.51.100.1"), 6, 5000))
	load.expect("a list of another interface", true, a("198.51.100.2"))
	load.expect("a list on trial", true, toPort(a("203.0.113.1"), 17, 99), toPort(a("203.0.113.2"), 6, 99))
	load.expect("the network around it is enforced", false, toPort(a("203.0.113.2"), 17, 99), toPort(a("203.0.113.3"), 17, 99))
	ports := func(proto uint8, src, dst uint16) key.Tuple {
		t := toPort(a("198.51.100.3"), proto, dst)
		t.SrcPort = src
		return t
	}
	load.expect("ranges of ports", false, ports(17, 1, 7000), ports(17, 1, 7010), ports(6, 40000, 81), ports(6, 40009, 82))
	load.expect("beside ranges of ports", true, ports(17, 1, 6999), ports(17, 1, 7011), ports(6, 1, 7000), ports(6, 39999, 82), ports(6, 40010, 82), ports(6, 40000, 83))
	change := func(remove bool, entries ...string) {
		t.Helper()
		c, err := h.api.Change(t.Context(), api.Change{Action: api.Block, Entries: entries, Remove: remove})
		if err != nil || c.Added+c.Removed != 1001 {
			t.Fatalf("%+v, %v", c, err)
		}
	}
	change(false, "udp 198.51.100.3:* > *:1000-2000")
	load.expect("a range that was blocked", false, ports(17, 1, 1000), ports(17, 1, 2000))
	load.expect("beside a range that was blocked", true, ports(17, 1, 999), ports(17, 1, 2001))
	change(true, "udp 198.51.100.3:* > *:1000-2000")
	load.expect("a range that was unblocked", true, ports(17, 1, 1000), ports(17, 1, 2000))
	if n := h.list("trial").Packets; n == nil || *n < 2 {
		t.Errorf("the list on trial has caught %v packets", n)
	}
	configure(", enforce: false")
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	load.expect("SSH from others, on trial", true, toPort(a("198.51.100.9"), 6, 22))
	d.stop()
	load.expect("SSH from others, on trial, without a daemon", true, toPort(a("198.51.100.9"), 6, 22))
	load.expect("VoIP without a daemon", false, toPort(a("198.51.100.1"), 17, 5000))
}

// What weir enforce has decided holds over everything that happens to the daemon, until the
// configuration decides anew; a time that comes while no daemon runs counts.
func TestEnforce(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	h := newHost(t)
	configure := func(trial, other string) {
		h.configure(h.B.Iface, "lists:\n  trial: {entries: [203.0.113.1]%s}\n  ours: {action: allow, entries: [192.0.2.1]}\n%s", trial, other)
	}
	const onTrial, other = ", enforce: false", "  other: {entries: [203.0.113.2]}\n"
	configure(onTrial, other)
	load := startTraffic(h.t, h.Lab, nil, froms(netip.MustParseAddr("10.0.0.1")))
	d := h.start(releases[0])
	listed := map[string]string{"trial": "203.0.113.1", "other": "203.0.113.2", "manual": "203.0.113.3"}
	expect := func(when, list string, enforced bool) {
		t.Helper()
		load.expect(when+": "+list, !enforced, from(netip.MustParseAddr(listed[list])))
	}
	enforce := func(list string, c api.EnforceChange) *api.Enforced {
		t.Helper()
		e, err := h.api.Enforce(t.Context(), list, c)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	refused := func(list string, c api.EnforceChange, why string) {
		t.Helper()
		if e, err := h.api.Enforce(t.Context(), list, c); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %+v: %+v, %v, want %q", list, c, e, err, why)
		}
	}
	reload := func(want string) {
		t.Helper()
		r, err := h.api.Reload(t.Context())
		if err != nil || !strings.Contains(strings.Join(r.Changes, "\n"), want) {
			t.Fatalf("%+v, %v, want %q", r, err, want)
		}
	}
	// ended waits until a list is enforced by itself.
	ended := func(when, list string) {
		t.Helper()
		for deadline := wait.Deadline(); ; time.Sleep(10 * time.Millisecond) {
			if l := h.list(list).Trial; l == nil || l.Enforced {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: list %s is still on trial", when, list)
			}
		}
		expect(when, list, true)
	}

	expect("as configured", "trial", false)
	expect("as configured", "other", true)
	if l := h.list("trial").Trial; l == nil || l.Enforced || !l.Configured || l.Since != nil {
		t.Errorf("as configured: %+v", l)
	}
	refused("nothing", api.EnforceChange{}, "other")
	refused("ours", api.EnforceChange{Off: true}, "name a block list")
	refused("other", api.EnforceChange{After: 60}, "enforced already")
	refused("trial", api.EnforceChange{After: -1}, "after_seconds")
	if e := enforce("trial", api.EnforceChange{Off: true}); e.Changed {
		t.Errorf("it is on trial already: %+v", e)
	}

	if e := enforce("trial", api.EnforceChange{}); !e.Changed || !e.Trial.Enforced || e.Trial.By != "root" {
		t.Errorf("%+v, %+v", e, e.Trial)
	}
	enforce("other", api.EnforceChange{Off: true})
	for _, moment := range []struct {
		name string
		do   func()
	}{
		{"at once", func() {}},
		{"reloaded", func() { reload("") }},
		{"killed", func() { d.kill(); d = h.start(releases[0]) }},
		{"restarted", func() { d.stop(); d = h.start(releases[0]) }},
		{"taken over", func() { d = h.takeOver(d, releases[0]) }},
	} {
		moment.do()
		expect(moment.name, "trial", true)
		expect(moment.name, "other", false)
		if l := h.list("other").Trial; l == nil || l.Enforced || l.Configured || l.Since == nil {
			t.Errorf("%s: %+v", moment.name, l)
		}
	}
	x, err := h.api.Explain(t.Context(), listed["other"])
	if a := x.Answers[0]; err != nil || a.Reason != api.ReasonWouldBlock || len(a.Matches) != 1 || !a.Matches[0].Trial {
		t.Errorf("%+v, %v", x, err)
	}
	if s, err := h.api.Status(t.Context()); err != nil || len(s.Trials) != 2 {
		t.Errorf("%+v, %v", s.Trials, err)
	}

	// A time that comes while no daemon runs, and while one does.
	at := *enforce("other", api.EnforceChange{Off: true, After: 0.2}).Trial.EnforcedAt
	d.kill()
	time.Sleep(time.Until(at))
	expect("the time has come without a daemon", "other", false)
	d = h.start(releases[0])
	ended("started after the time", "other")
	enforce("other", api.EnforceChange{Off: true})
	enforce("other", api.EnforceChange{After: 0.1})
	ended("the time has come", "other")
	enforce("other", api.EnforceChange{Off: true, After: 3600})
	enforce("other", api.EnforceChange{Off: true})
	if l := h.list("other").Trial; l == nil || l.EnforcedAt != nil {
		t.Errorf("without a time: %+v", l)
	}

	// The configuration wins where it changes, whether a daemon runs or not.
	configure("", other)
	reload("`enforce` of")
	expect("configured to be enforced", "trial", true)
	configure(onTrial, other)
	reload("")
	expect("configured to be on trial again", "trial", false)
	d.stop()
	configure(onTrial, "  other: {entries: [203.0.113.2], enforce: false}\n")
	d = h.start(releases[0])
	expect("configured to be on trial while no daemon ran", "other", false)
	d.await(0, "trials: list other")
	configure(onTrial, other)
	reload("")
	expect("configured to be enforced again", "other", true)

	// A list that goes takes its trial with it.
	enforce("other", api.EnforceChange{Off: true})
	configure(onTrial, "")
	reload("the list is gone")
	configure(onTrial, other)
	reload("")
	expect("the list is back", "other", true)

	// What would cut off the caller is not enforced, by a command or by itself.
	ssh := listed["manual"] + " 50000 192.0.2.2 22"
	enforce("manual", api.EnforceChange{Off: true})
	if _, err := h.api.Change(t.Context(), api.Change{Action: api.Block, Entries: []string{listed["manual"]}, SSH: ssh}); err != nil {
		t.Fatal(err)
	}
	refused("manual", api.EnforceChange{SSH: ssh}, "would cut off your SSH session")
	expect("refused", "manual", false)
	enforce("manual", api.EnforceChange{SSH: ssh, Force: true})
	expect("forced", "manual", true)
	if l := h.list("manual").Trial; l != nil {
		t.Errorf("enforced as configured: %+v", l)
	}
	if _, err := os.Stat(h.path("state/trial.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing is left to remember: %v", err)
	}

	records, err := h.api.Audit(t.Context(), 100)
	kinds := make(map[string]int)
	for _, r := range records.Changes {
		if r.Error != "" {
			r.Change += ", refused"
		}
		kinds[r.Change+" "+r.List+" "+r.Source]++
	}
	for _, want := range []string{"enforce trial socket", "enforce off other socket", "enforce other expiry", "enforce, refused manual socket"} {
		if err != nil || kinds[want] == 0 {
			t.Errorf("the audit lacks %q: %v, %v", want, kinds, err)
		}
	}
	d.stop()
}
