package announce

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/control/api"
	"weir/control/list/listfile"
	"weir/tests/must"
)

// fake is a daemon.
type fake struct {
	top       api.Top
	err       error
	protected []api.Protected
	allowed   string // an address
	failsafe  string
	depends   []api.Dependency // of all packets
	slow      time.Duration    // of an answer of ExplainSoon
}

func (f *fake) Top(context.Context) (*api.Top, error) { return &f.top, f.err }

func (f *fake) Status(context.Context) (*api.Status, error) {
	return &api.Status{Protected: f.protected}, f.err
}

func (f *fake) ExplainSoon(_ context.Context, question string) (*api.Explanation, error) {
	time.Sleep(f.slow)
	e := api.Explanation{Answers: []api.Answer{{Depends: f.depends}}}
	switch question {
	case f.allowed:
		e.Answers = []api.Answer{{}, {Matches: []api.Match{{List: "friends", Action: "allow", Entry: question}}}}
	case f.failsafe:
		e.Answers = []api.Answer{{Stages: []api.Stage{{Stage: api.StageFailsafe, Met: true, By: "from it"}}}}
	}
	return &e, f.err
}

func (f *fake) heavy(tracker string, flows ...string) {
	t := api.Tracker{Key: tracker, Unit: "packets"}
	for i, text := range flows {
		t.Flows = append(t.Flows, api.Flow{Key: text, Heavy: true, Packets: float64(1000 - i), LeastPackets: 600})
	}
	t.Flows = append(t.Flows, api.Flow{Key: "203.0.113.200"}, // not heavy
		api.Flow{Key: "203.0.113.201", Heavy: true, Packets: 1000, LeastPackets: 10}) // perhaps
	f.top.Trackers = []api.Tracker{t}
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

type setup struct {
	t   *testing.T
	out bytes.Buffer
	log bytes.Buffer
	now time.Time
	d   fake
	*Announcer
}

func newSetup(t *testing.T, trackers ...string) *setup {
	s := &setup{t: t, now: time.Now()}
	s.Announcer = &Announcer{
		Spec: Spec{
			Kind: Blackhole, Trackers: trackers, Own: prefixes("203.0.113.0/24", "2001:db8:1::/48"), Max: 3,
			Min4: 32, Min6: 128, Hold: time.Minute, Next4: "self", Next6: "100::1", Communities: []string{"65535:666"},
		},
		Out: &s.out, Log: slog.New(slog.NewTextHandler(&s.log, nil)),
	}
	if trackers[0] == "flow" {
		s.Kind = FlowSpec
	}
	s.d.protected = []api.Protected{}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	if err := s.begin(s.now); err != nil {
		t.Fatal(err)
	}
	return s
}

// step is a look after a time; it returns what was written.
func (s *setup) step(after time.Duration) string {
	s.t.Helper()
	s.now = s.now.Add(after)
	s.out.Reset()
	if err := s.once(s.t.Context(), &s.d, s.now); err != nil {
		s.t.Fatal(err)
	}
	return s.out.String()
}

const (
	victim  = "route 203.0.113.7/32 next-hop self community [65535:666]\n"
	victim6 = "route 2001:db8:1::7/128 next-hop 100::1 community [65535:666]\n"
)

// What is heavy is announced once, and withdrawn when it has not been heavy for the hold
// time, whether the daemon answers or not.
func TestHold(t *testing.T) {
	s := newSetup(t, "dst")
	s.d.heavy("dst", "203.0.113.7", "2001:db8:1::7")
	if got := s.step(0); got != "announce "+victim+"announce "+victim6 {
		t.Fatal(got)
	}
	if got := s.step(50 * time.Second); got != "" {
		t.Fatal(got)
	}
	s.d.heavy("dst", "2001:db8:1::7")
	if got := s.step(50 * time.Second); got != "" {
		t.Fatal(got)
	}
	s.d.err = errors.New("the daemon is not running")
	if got := s.step(20 * time.Second); got != "withdraw "+victim {
		t.Fatal(got)
	}
	if got := s.step(40 * time.Second); got != "withdraw "+victim6 {
		t.Fatal(got)
	}
	s.d.err = nil
	if got := s.step(time.Second); got != "announce "+victim6 {
		t.Fatal(got)
	}
	s.out.Reset()
	if err := s.end(s.now); err != nil || s.out.String() != "withdraw "+victim6 {
		t.Fatal(s.out.String(), err)
	}
}

// A daemon that takes long for an answer about each flow delays no turn, no expiry, and no
// announcement for good.
func TestSlowDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, "dst")
		s.Max = 100
		s.d.slow = 100 * time.Millisecond
		var flows []string
		for i := range 50 {
			flows = append(flows, fmt.Sprintf("203.0.113.%d", i))
		}
		s.d.heavy("dst", flows...)
		step := func() (out string) {
			began := time.Now()
			out = s.step(time.Second)
			if took := time.Since(began); took > 2*askingTime+2*s.d.slow {
				t.Fatalf("a turn of %v", took)
			}
			return out
		}
		for range 20 {
			step()
		}
		if len(s.routes) != len(flows) {
			t.Fatalf("%d of %d flows are announced", len(s.routes), len(flows))
		}
		s.d.allowed = "203.0.113.49"
		out := ""
		for range 20 {
			out += step()
		}
		if !strings.Contains(out, "withdraw route 203.0.113.49/32") || strings.Count(out, "withdraw") != 1 {
			t.Errorf("what is allowed is not withdrawn: %q", out)
		}
		s.d.heavy("dst")
		out = ""
		for range int(s.Hold/time.Second) + 1 {
			out += step()
		}
		if len(s.routes) != 0 || strings.Count(out, "withdraw") != len(flows)-1 {
			t.Errorf("%d routes are left, %d withdrawn", len(s.routes), strings.Count(out, "withdraw"))
		}
	})
}

// What must not be announced is refused, and the reason is logged once.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name, tracker, flow, want string
		change                    func(*setup)
	}{
		{"foreign", "dst", "192.0.2.7", "is not in a prefix of --own", nil},
		{"own source", "src", "203.0.113.7", "is in a prefix of --own", nil},
		{"around own", "src/24", "203.0.113.0/24", "is in a prefix of --own", nil},
		{"private source", "src", "10.0.0.7", "private", nil},
		{"shared source", "src", "100.64.0.7", "private", nil},
		{"short", "src/24", "198.51.100.0/24", "shorter than /32", nil},
		{"short, IPv6", "dst/64", "2001:db8:1::/64", "shorter than /128", nil},
		{"neighbor", "dst", "203.0.113.1", "--protect 203.0.113.0/30", func(s *setup) { s.Protect = prefixes("203.0.113.0/30") }},
		{"own address", "dst", "203.0.113.2", "this host's address", func(s *setup) {
			s.d.protected = []api.Protected{{What: "this host's address", Entry: "> 203.0.113.2"}}
		}},
		{"resolver", "src", "198.51.100.53", "the resolver", func(s *setup) {
			s.d.protected = []api.Protected{{What: "the resolver", Entry: "udp 198.51.100.53:53 > 203.0.113.2:*"}}
		}},
		{"network around a gateway", "src/24", "198.51.100.0/24", "the gateway", func(s *setup) {
			s.Min4, s.d.protected = 24, []api.Protected{{What: "the gateway", Entry: "any 198.51.100.1:* > 203.0.113.2:*"}}
		}},
		{"allowed", "dst", "203.0.113.7", "list friends allows", func(s *setup) { s.d.allowed = "203.0.113.7" }},
		{"failsafe", "src", "198.51.100.7", "failsafe: from it", func(s *setup) { s.d.failsafe = "198.51.100.7" }},
		{"allowed inside", "src/24", "198.51.100.0/24", "list friends allows 198.51.100.7, which is in it", func(s *setup) {
			s.Min4, s.d.depends = 24, depends("allow", "198.51.100.7")
		}},
		{"allowed flow", "dst", "203.0.113.7", "list friends allows tcp *:* > 203.0.113.7:443, which is in it", func(s *setup) {
			s.d.depends = depends("allow", "tcp *:* > 203.0.113.7:443")
		}},
		{"failsafe inside", "src/24", "198.51.100.0/24", "failsafe: 198.51.100.7/32, which is in it", func(s *setup) {
			s.Min4, s.d.depends = 24, []api.Dependency{{Stage: api.StageFailsafe, Packets: "from 198.51.100.7/32"}}
		}},
		{"monitor mode", "dst", "203.0.113.7", "monitor mode", func(s *setup) { s.d.top.Monitor = true }},
		{"unknown peers", "dst", "203.0.113.7", "has yet to find out", func(s *setup) { s.d.protected = nil }},
		{"no tracker", "src", "198.51.100.7", "no tracker src", func(s *setup) { s.d.heavy("dst", "203.0.113.7") }},
		{"guard", "src", "198.51.100.7", "no tracker src", func(s *setup) { s.d.top.Trackers[0].Unit = "ports" }},
	} {
		s := newSetup(t, c.tracker)
		s.d.heavy(c.tracker, c.flow)
		if c.change != nil {
			c.change(s)
		}
		for range 3 {
			if got := s.step(time.Second); got != "" {
				t.Errorf("%s: %s", c.name, got)
			}
		}
		if log := s.log.String(); !strings.Contains(log, c.want) || strings.Count(log, "\n") != 1 {
			t.Errorf("%s: %q is not logged once:\n%s", c.name, c.want, log)
		}
	}
}

// depends are dependencies on an entry.
func depends(action, entry string) []api.Dependency {
	return []api.Dependency{{Packets: entry, Match: &api.Match{List: "friends", Action: action, Entry: entry}}}
}

// What does not name the address spares none of its packets in particular.
func TestNotRefused(t *testing.T) {
	for name, on := range map[string][]api.Dependency{
		"allowed from elsewhere":  depends("allow", "192.0.2.0/24"),
		"allowed from any":        depends("allow", "udp *:53"),
		"blocked":                 depends("block", "tcp *:* > 203.0.113.7:443"),
		"failsafe from elsewhere": {{Stage: api.StageFailsafe, Packets: "from 10.0.0.0/8"}},
		"failsafe port":           {{Stage: api.StageFailsafe, Packets: "tcp/22"}},
	} {
		s := newSetup(t, "dst")
		s.d.depends = on
		s.d.heavy("dst", "203.0.113.7")
		if got := s.step(0); got != "announce "+victim {
			t.Errorf("%s: %q\n%s", name, got, &s.log)
		}
	}
}

// A daemon that has just started, again, does not know yet what must not be announced.
func TestDaemonRestarts(t *testing.T) {
	s := newSetup(t, "dst")
	s.d.protected = []api.Protected{{What: "this host's address", Entry: "> 203.0.113.7"}}
	s.d.heavy("dst", "203.0.113.7")
	if got := s.step(0); got != "" {
		t.Fatal(got)
	}
	s.d.protected = nil
	for range 3 {
		if got := s.step(lookAgain); got != "" {
			t.Fatal(got)
		}
	}
}

// What is allowed later is withdrawn, and comes back when it no longer is.
func TestAllowedLater(t *testing.T) {
	s := newSetup(t, "dst")
	s.d.heavy("dst", "203.0.113.7")
	if got := s.step(0); got != "announce "+victim {
		t.Fatal(got)
	}
	s.d.allowed = "203.0.113.7"
	if got := s.step(lookAgain); got != "withdraw "+victim {
		t.Fatal(got)
	}
	if got := s.step(time.Second); got != "" {
		t.Fatal(got)
	}
	s.d.allowed = ""
	if got := s.step(lookAgain); got != "announce "+victim {
		t.Fatal(got)
	}
}

// There are never more announcements than may be; the heaviest come first.
func TestMostRoutes(t *testing.T) {
	s := newSetup(t, "dst")
	s.d.heavy("dst", "203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4", "203.0.113.5")
	got := s.step(0)
	if strings.Count(got, "announce") != 3 || !strings.Contains(got, "203.0.113.3/32") {
		t.Error(got)
	}
	s.d.heavy("dst", "203.0.113.4")
	if got := s.step(time.Second); got != "" {
		t.Error(got)
	}
	if got := s.step(time.Minute); strings.Count(got, "withdraw") != 3 {
		t.Error(got)
	}
	if got := s.step(time.Second); !strings.Contains(got, "announce route 203.0.113.4/32") {
		t.Error(got)
	}
}

func TestFlowSpec(t *testing.T) {
	s := newSetup(t, "flow")
	for entry, want := range map[string]string{
		"198.51.100.7":                              "source 198.51.100.7/32;",
		"2001:db8:9::7":                             "source 2001:db8:9::7/128/0;",
		"> 203.0.113.7":                             "destination 203.0.113.7/32;",
		"udp 198.51.100.7:53 > 203.0.113.8:4000":    "source 198.51.100.7/32; destination 203.0.113.8/32; protocol =17; source-port =53; destination-port =4000;",
		"tcp [2001:db8:9::7]:1 > [2001:db8:1::7]:2": "source 2001:db8:9::7/128/0; destination 2001:db8:1::7/128/0; next-header =6; source-port =1; destination-port =2;",
	} {
		k, ok := keyOf("", entry)
		if got := s.route(k); !ok || got != "flow route { match { "+want+" } then { discard; } }" {
			t.Errorf("%s: %s", entry, got)
		}
	}
	s.d.heavy("flow", "udp 198.51.100.7:53 > 203.0.113.8:4000", "udp 198.51.100.7:53 > 192.0.2.8:4000")
	if got := s.step(0); strings.Count(got, "\n") != 1 || !strings.Contains(got, "203.0.113.8/32") {
		t.Error(got)
	}
}

func TestDryRunAndJSON(t *testing.T) {
	s := newSetup(t, "dst")
	s.Dry = true
	s.d.heavy("dst", "203.0.113.7")
	if got := s.step(0); got != "# announce "+victim {
		t.Error(got)
	}
	s.Dry, s.JSON = false, true
	var c Change
	s.d.heavy("dst")
	if err := json.Unmarshal([]byte(s.step(time.Hour)), &c); err != nil || c.Action != Withdraw || c.Flow != "> 203.0.113.7" || c.Reason != expired || c.Kind != Blackhole {
		t.Errorf("%+v %v", c, err)
	}
}

// A process that was killed leaves a file. The next one reads it, goes on, and withdraws what
// has expired or is announced otherwise.
func TestState(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	start := func(now time.Time, change func(*Announcer)) (*setup, string) {
		s := newSetup(t, "dst")
		s.State, s.now = file, now
		if change != nil {
			change(s.Announcer)
		}
		if err := s.begin(now); err != nil {
			t.Fatal(err)
		}
		return s, s.out.String()
	}
	s, _ := start(time.Now(), nil)
	s.d.heavy("dst", "203.0.113.7", "2001:db8:1::7")
	s.step(0)
	_, got := start(s.now.Add(30*time.Second), nil)
	if got != "announce "+victim6+"announce "+victim && got != "announce "+victim+"announce "+victim6 {
		t.Error(got)
	}
	if _, got = start(s.now.Add(30*time.Second), func(a *Announcer) { a.Own = prefixes("203.0.113.0/24") }); !strings.Contains(got, "announce "+victim) || !strings.Contains(got, "withdraw "+victim6) {
		t.Error(got)
	}
	if _, got = start(s.now.Add(2*time.Minute), nil); got != "withdraw "+victim {
		t.Error(got)
	}
	if _, got = start(s.now.Add(2*time.Minute), nil); got != "" {
		t.Error(got)
	}
	must.Write(t, file, "{")
	s.State = file
	if err := s.begin(s.now); err == nil || !strings.Contains(err.Error(), "restart ExaBGP") {
		t.Error(err)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(*Spec)
	}{
		{"--own", func(s *Spec) { s.Own = nil }},
		{"--max-routes 0", func(s *Spec) { s.Max = 0 }},
		{"--min-ipv4 8", func(s *Spec) { s.Min4 = 8 }},
		{"--min-ipv6 129", func(s *Spec) { s.Min6 = 129 }},
		{"--hold", func(s *Spec) { s.Hold = 0 }},
		{"--tracker flow goes with --kind flowspec", func(s *Spec) { s.Trackers = []string{"flow"} }},
		{"--tracker \"x\"", func(s *Spec) { s.Trackers = []string{"x"} }},
	} {
		spec := newSetup(t, "dst").Spec
		c.change(&spec)
		if err := spec.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.want, err)
		}
	}
}

// Whatever a daemon names, what is announced is in the limits.
func FuzzRoute(f *testing.F) {
	f.Add("203.0.113.7", true)
	f.Add("udp [2001:db8:9::7]:1 > [2001:db8:1::7]:2", false)
	f.Fuzz(func(t *testing.T, text string, dst bool) {
		tracker := "src"
		if dst {
			tracker = "dst"
		}
		s := newSetup(t, tracker)
		s.Kind = FlowSpec
		k, ok := keyOf(tracker, text)
		if !ok || s.refuse(k, nil) != nil {
			return
		}
		route := s.route(k)
		if strings.ContainsAny(route, "\r\n") {
			t.Fatalf("%q: %q", text, route)
		}
		src, to := target(k)
		if to.IsValid() && !slices.ContainsFunc(s.Own, func(o netip.Prefix) bool { return o.Overlaps(to) }) || src.IsValid() && slices.ContainsFunc(s.Own, src.Overlaps) {
			t.Fatalf("%q: %q", text, route)
		}
		if _, err := listfile.ParseEntry(k.String()); err != nil {
			t.Fatal(err)
		}
	})
}

// killed is a writer after which the process ends, with the state file as it is then.
type killed struct {
	out   bytes.Buffer
	at    int // lines
	file  string
	state []byte
}

func (k *killed) Write(b []byte) (int, error) {
	k.out.Write(b)
	if k.at--; k.at == 0 {
		k.state, _ = os.ReadFile(k.file)
	}
	return len(b), nil
}

// Whenever the process is killed, the state file has all that ExaBGP announces then.
func TestKilledAnyTime(t *testing.T) {
	for at := 1; at <= 4; at++ {
		s := newSetup(t, "dst")
		s.State = filepath.Join(t.TempDir(), "state")
		out := &killed{at: at, file: s.State}
		s.Out = out
		s.d.heavy("dst", "203.0.113.7", "2001:db8:1::7")
		s.step(0)
		s.d.heavy("dst")
		s.step(2 * time.Minute)
		if lines := strings.SplitAfter(out.out.String(), "\n"); len(lines) != 5 {
			t.Fatalf("%q", lines)
		}
		announced := make(map[string]bool)
		for _, line := range strings.SplitAfter(out.out.String(), "\n")[:at] {
			action, route, _ := strings.Cut(line, " ")
			announced[strings.TrimSpace(route)] = action == Announce
		}
		for route, is := range announced {
			if is && !strings.Contains(string(out.state), route) {
				t.Errorf("killed after line %d, %s stays for good: %s", at, route, out.state)
			}
		}
	}
}

// Where the state cannot be saved, all is withdrawn, and nothing announced.
func TestUnsaved(t *testing.T) {
	s := newSetup(t, "dst")
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s.State = filepath.Join(dir, "state")
	s.d.heavy("dst", "203.0.113.7")
	s.step(0)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	s.d.heavy("dst", "203.0.113.7", "2001:db8:1::7")
	s.out.Reset()
	if err := s.once(t.Context(), &s.d, s.now.Add(time.Second)); err == nil || s.out.String() != "" {
		t.Errorf("%v\n%s", err, &s.out)
	}
	if err := s.end(s.now); err == nil || !strings.Contains(s.out.String(), "withdraw "+victim) {
		t.Errorf("%v\n%s", err, &s.out)
	}
}

// A route that goes on is not taken for expired by the next process.
func TestStateIsRenewed(t *testing.T) {
	s := newSetup(t, "dst")
	s.State = filepath.Join(t.TempDir(), "state")
	s.d.heavy("dst", "203.0.113.7")
	for range 10 {
		s.step(20 * time.Second)
	}
	next := newSetup(t, "dst")
	next.State = s.State
	if err := next.begin(s.now.Add(10 * time.Second)); err != nil || next.out.String() != "announce "+victim {
		t.Errorf("%v\n%s", err, &next.out)
	}
}

// The clock was ahead when the state was saved: a route stays for the hold time, and not until then.
func TestStateOfAClockThatWasAhead(t *testing.T) {
	for _, ahead := range []time.Duration{24 * time.Hour, 70 * 365 * 24 * time.Hour} {
		s := newSetup(t, "dst")
		s.State = filepath.Join(t.TempDir(), "state")
		s.d.heavy("dst", "203.0.113.7")
		s.step(ahead)
		next := newSetup(t, "dst")
		next.State = s.State
		if err := next.begin(next.now); err != nil || next.out.String() != "announce "+victim {
			t.Fatalf("%v\n%s", err, &next.out)
		}
		if got := next.step(next.Hold - time.Second); got != "" {
			t.Errorf("%v ahead: %q before it expires", ahead, got)
		}
		if got := next.step(time.Second); got != "withdraw "+victim {
			t.Errorf("%v ahead: %q", ahead, got)
		}
	}
}
