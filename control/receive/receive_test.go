package receive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir/control/api"
)

// fake is a daemon.
type fake struct {
	has     map[string]time.Time // entries, and patterns with their rates, until when
	refused string               // an entry or a pattern that it refuses
	away    error
	slow    time.Duration
	changes int
	mu      sync.Mutex
}

// refuse has it refuse an entry or a pattern, and fail makes it fail.
func (f *fake) refuse(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = what
}

func (f *fake) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = err
}

func (f *fake) have(what string) (is bool, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, is = f.has[what]
	return is, len(f.has)
}

func (f *fake) Change(_ context.Context, c api.Change) (*api.Changed, error) {
	time.Sleep(f.slow)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changes++; f.away != nil {
		return nil, f.away
	}
	if at := slices.Index(c.Entries, f.refused); at >= 0 && !c.Remove {
		return nil, &api.BadRequest{Entry: &at, Err: errors.New("it would cut off the gateway")}
	}
	for _, e := range c.Entries {
		if delete(f.has, e); !c.Remove {
			f.has[e] = time.Now().Add(time.Duration(c.TTL * float64(time.Second)))
		}
	}
	return &api.Changed{}, nil
}

func (f *fake) SetPolice(_ context.Context, c api.PoliceChange) (*api.Policed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changes++; f.away != nil {
		return nil, f.away
	}
	if c.Pattern == f.refused && !c.Off {
		return nil, &api.BadRequest{Err: errors.New("it would hold back the gateway")}
	}
	for k := range f.has {
		if strings.HasPrefix(k, c.Pattern+" ") {
			delete(f.has, k)
		}
	}
	if !c.Off {
		f.has[c.Pattern+" "+c.Rate] = time.Now().Add(time.Duration(c.For * float64(time.Second)))
	}
	return &api.Policed{}, nil
}

// setup is a Receiver beside a daemon, with sessions that the test makes up.
type setup struct {
	*Receiver
	t      *testing.T
	d      *fake
	log    logged
	events chan event
}

// logged is a log, safe for concurrent use.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// begin starts it in a bubble of synctest.
func begin(t *testing.T, change func(*Receiver)) *setup {
	s := &setup{t: t, d: &fake{has: make(map[string]time.Time)}, events: make(chan event)}
	s.Receiver = &Receiver{Spec: testSpec()}
	s.Log = slog.New(slog.NewTextHandler(&s.log, nil))
	if change != nil {
		change(s.Receiver)
	}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	s.prepare()
	go func() { ended <- s.loop(ctx, s.d, s.events, nil) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// session begins one of a neighbor.
func (s *setup) session() *session {
	of := &session{Neighbor: s.Neighbors[0]}
	s.events <- event{of: of, up: true}
	return of
}

func unicast(prefix string) nlri {
	p := netip.MustParsePrefix(prefix)
	of, err := bgp.NewIPAddrPrefix(p)
	if err != nil {
		panic(err)
	}
	f := bgp.RF_IPv4_UC
	if p.Addr().Is6() {
		f = bgp.RF_IPv6_UC
	}
	return nlri{f, of}
}

func (s *setup) flow(components string) nlri {
	return nlri{bgp.RF_FS_IPv4_UC, decode(s.t, bgp.RF_FS_IPv4_UC, components)}
}

var (
	hole = attributes{communities: []string{"64500:1", "65535:666"}}
	drop = attributes{extended: drops, first: 64500}
)

func (s *setup) announce(of *session, a attributes, all ...nlri) {
	s.events <- event{of: of, update: &update{announced: all, attributes: a}}
}

func (s *setup) withdraw(of *session, all ...nlri) {
	s.events <- event{of: of, update: &update{withdrawn: all}}
}

// after waits, and fails if the daemon does not have just that then.
func (s *setup) after(d time.Duration, want ...string) {
	s.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	var got []string
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for k, until := range s.d.has {
		if time.Now().Before(until) {
			got = append(got, k)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.t.Errorf("the daemon has %q, want %q\n%s", got, want, &s.log)
	}
}

func (s *setup) logs(want string) {
	s.t.Helper()
	if strings.Count(s.log.String(), want) != 1 {
		s.t.Errorf("%q is not logged once:\n%s", want, &s.log)
	}
}

const (
	hole7   = "> 203.0.113.7"
	limit8  = "01 20 cb007108 03 81 11" // UDP to 203.0.113.8
	length8 = "01 20 cb007108 03 81 11 0a 81 1c"
	pattern = "udp length 28 dst 203.0.113.8/32 0pps"
)

// What is announced is there within a second, and stays as long as the session; what is withdrawn is
// gone within a second.
func TestWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := begin(t, nil)
		of := s.session()
		s.announce(of, hole, unicast("203.0.113.7/32"), unicast("203.0.113.16/28"), unicast("2001:db8::7/128"))
		s.announce(of, attributes{}, unicast("203.0.113.9/32"))
		s.announce(of, drop, s.flow(length8))
		all := []string{hole7, "> 203.0.113.16/28", "> 2001:db8::7", pattern}
		s.after(time.Second, all...)
		for range 50 {
			s.after(s.Hold/10, all...)
		}
		s.withdraw(of, unicast("203.0.113.7/32"), s.flow(length8), unicast("203.0.113.99/32"))
		s.after(time.Second, "> 203.0.113.16/28", "> 2001:db8::7")
		s.announce(of, attributes{}, unicast("203.0.113.16/28")) // is no blackhole any more
		s.after(time.Second, "> 2001:db8::7")
		s.announce(of, attributes{communities: []string{"64500:1:666"}}, unicast("203.0.113.7/32"))
		s.after(time.Second, hole7, "> 2001:db8::7")
		s.logs("route=203.0.113.16/28 entries")
	})
}

// Routes of a session that has ended stay for the hold time, and no longer. Those that the next session does
// not announce are gone with its End-of-RIB marker.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := begin(t, nil)
		of := s.session()
		s.announce(of, hole, unicast("203.0.113.7/32"), unicast("203.0.113.8/32"))
		s.announce(of, drop, s.flow(length8))
		all := []string{hole7, "> 203.0.113.8", pattern}
		s.after(s.Hold/2-time.Second, all...) // they are not renewed before the half of it
		s.events <- event{of: of, down: io.EOF}
		s.after(s.Hold-time.Second, all...)
		s.after(2 * time.Second)
		s.logs("withdrawn neighbor=192.0.2.1 route=203.0.113.7/32")
		of = s.session()
		s.announce(of, hole, unicast("203.0.113.7/32"), unicast("203.0.113.8/32"))
		s.announce(of, drop, s.flow(length8))
		s.after(time.Second, all...)
		s.events <- event{of: of, down: io.EOF}
		next := s.session()
		s.events <- event{of: of, down: io.EOF} // late
		s.announce(next, hole, unicast("203.0.113.7/32"))
		s.after(time.Second, all...)
		s.events <- event{of: next, ended: true, family: bgp.RF_IPv4_UC}
		s.after(time.Second, hole7, pattern)
		s.after(s.Hold, hole7)
		s.withdraw(of, unicast("203.0.113.7/32")) // of the former session
		s.after(time.Second, hole7)
	})
}

// What the daemon refuses is refused whole, without harm to others, and asked again after a minute.
func TestDaemonRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := begin(t, nil)
		s.Hold = time.Hour
		s.d.refuse(hole7)
		of := s.session()
		s.announce(of, hole, unicast("203.0.113.6/32"), unicast("203.0.113.7/32"), unicast("203.0.113.8/32"))
		s.after(time.Second, "> 203.0.113.6", "> 203.0.113.8")
		s.logs("would cut off the gateway")
		s.d.refuse("")
		s.after(askAgain, "> 203.0.113.6", "> 203.0.113.8", hole7)
		s.d.refuse("udp 0.0.0.0/0:* > 203.0.113.9:53")
		s.announce(of, drop, s.flow("01 20 cb007109 05 81 35"))
		s.after(time.Second, "> 203.0.113.6", "> 203.0.113.8", hole7)
		s.d.refuse("udp length 28 dst 203.0.113.8/32")
		s.announce(of, drop, s.flow(length8))
		s.after(time.Second, "> 203.0.113.6", "> 203.0.113.8", hole7)
		s.logs("would hold back the gateway")
	})
}

// A daemon that is away for a time has all that is announced afterwards, and nothing else.
func TestDaemonAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := begin(t, nil)
		of := s.session()
		s.announce(of, hole, unicast("203.0.113.6/32"))
		s.after(time.Second, "> 203.0.113.6")
		s.d.fail(errors.New("the daemon is not running"))
		s.announce(of, hole, unicast("203.0.113.7/32"))
		s.withdraw(of, unicast("203.0.113.6/32"))
		s.after(10*time.Second, "> 203.0.113.6")
		s.logs("is not running")
		s.d.fail(nil)
		s.after(tryAgain, hole7)
		s.logs("follows again")
	})
}

// Withdrawals do not wait for thousands of routes that a slow daemon takes.
func TestSlowDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := begin(t, func(r *Receiver) {
			r.MaxRoutes, r.MaxCovered, r.Own = mostRoutes, 1e6, []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
		})
		s.d.slow = 200 * time.Millisecond
		of := s.session()
		s.announce(of, hole, unicast("203.0.113.7/32"))
		for i := range 9000 {
			s.announce(of, hole, unicast(fmt.Sprintf("10.0.%d.%d/32", i/250, i%250)))
		}
		time.Sleep(500 * time.Millisecond) // it is about to take them
		if there, n := s.d.have(hole7); !there {
			t.Errorf("the first one is not there, but %d", n)
		}
		began := time.Now()
		s.withdraw(of, unicast("203.0.113.7/32"))
		time.Sleep(time.Second - time.Since(began))
		synctest.Wait()
		if there, n := s.d.have(hole7); there || n < 1000 || n == 9000 {
			t.Errorf("withdrawn: %v, of %d", !there, n)
		}
		time.Sleep(5 * time.Second)
		if _, n := s.d.have(hole7); n != 9000 {
			t.Errorf("%d are there", n)
		}
	})
}

// No neighbor has more than it may; what comes first stays.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := begin(t, func(r *Receiver) { r.MaxRoutes, r.MaxCovered, r.MaxPatterns = 4, 258, 1 })
		of := s.session()
		s.announce(of, hole, unicast("203.0.113.7/32"), unicast("203.0.113.0/24"), unicast("203.0.113.8/30"), unicast("203.0.113.9/32"), unicast("203.0.113.10/32"))
		s.after(time.Second, hole7, "> 203.0.113.0/24", "> 203.0.113.9")
		s.logs("--max-routes")
		s.logs("--max-covered")
		s.withdraw(of, unicast("203.0.113.0/24"), unicast("203.0.113.9/32"))
		s.after(time.Second, hole7, "> 203.0.113.8/30")
		s.announce(of, drop, s.flow(length8), s.flow("01 20 cb007108 03 81 11 0a 81 1d"))
		s.after(time.Second, hole7, "> 203.0.113.8/30", pattern)
		s.logs("--max-patterns")
	})
}

// Unicast routes are taken within the limits.
func TestBlackholes(t *testing.T) {
	for _, c := range []struct {
		prefix  string
		sources bool
		want    string
	}{
		{"203.0.113.7/32", false, hole7},
		{"2001:db8::/56", false, "> 2001:db8::/56"},
		{"2001:db8::/48", false, "shorter than /56"},
		{"203.0.112.0/23", false, "shorter than /24"},
		{"192.0.2.7/32", false, "not in a prefix of --own"},
		{"192.0.2.0/24", true, "192.0.2.0/24"},
		{"203.0.113.0/24", true, "in a prefix of --own"},
		{"0.0.0.0/0", true, "shorter than /24"},
	} {
		s := testSpec()
		s.Sources = c.sources
		r := s.route(unicast(c.prefix), s.Neighbors[0], &hole)
		got := ""
		if r.wrong != nil {
			got = r.wrong.Error()
		} else {
			got = r.items[0].text
		}
		if !strings.Contains(got, c.want) || r.wrong == nil && got != c.want {
			t.Errorf("%s: %s, want %s", c.prefix, got, c.want)
		}
		if s.route(unicast(c.prefix), s.Neighbors[0], &attributes{communities: []string{"65535:665"}}) != nil {
			t.Errorf("%s is a blackhole without a community", c.prefix)
		}
	}
}

// A rule whose packets an earlier one lets pass is refused, as it would drop more than was asked for.
func TestEarlierRule(t *testing.T) {
	const drop8, pattern8, limited = "01 20 cb007108", "> 203.0.113.8", "udp dst 203.0.113.8/32 1kpps"
	rate := attributes{extended: [][]byte{rated(trafficRatePackets, 1000)}, first: 64500}
	goesOn := attributes{extended: append([][]byte{{0x80, 7, 0, 0, 0, 0, 0, 1}}, rate.extended...), first: 64500}
	accept := attributes{first: 64500}
	for _, c := range []struct {
		name    string
		earlier attributes
		rule    string
		later   string
		want    []string
	}{
		{"a rate", rate, limit8, drop8, []string{limited}},
		{"a rate, and on", goesOn, limit8, drop8, []string{limited, pattern8}},
		{"accept", accept, limit8, drop8, nil},
		{"accept by what cannot be read", accept, "01 20 cb007108 0b 81 2e", drop8, nil},
		{"accept by what cannot be read at all", accept, "01 20 cb007109 50 81 2e", drop8, nil},
		{"accept by that, for no one's own", accept, "01 20 c0000207 50 81 2e", drop8, []string{pattern8}},
		{"accept for another destination", accept, "01 20 cb007109 03 81 11", drop8, []string{pattern8}},
		{"accept for another protocol", accept, "01 20 cb007108 03 81 11", "01 20 cb007108 03 81 2f", []string{"47 0.0.0.0/0:* > 203.0.113.8:*"}},
		{"accept for a network around it", accept, "01 18 cb0071", drop8, []string{pattern8}}, // which is later
		{"accept for all, of no one's own", accept, "01 00", drop8, []string{pattern8}},
		{"drop", drop, limit8, drop8, []string{"udp 0.0.0.0/0:* > 203.0.113.8:*", pattern8}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := begin(t, nil)
				of := s.session()
				s.announce(of, drop, s.flow(c.later))
				s.announce(of, c.earlier, s.flow(c.rule))
				s.after(time.Second, c.want...)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // more than are compared
		s := begin(t, nil)
		of := s.session()
		s.announce(of, drop, s.flow(drop8), s.flow("01 20 cb007101"))
		for i := range mostPassing {
			s.announce(of, accept, s.flow(fmt.Sprintf("01 20 cb007107 0a 81 %02x", i)))
		}
		s.after(time.Second, "> 203.0.113.1")
		s.withdraw(of, s.flow("01 20 cb007107 0a 81 00"))
		s.after(time.Second, "> 203.0.113.1", pattern8)
	})
	synctest.Test(t, func(t *testing.T) { // of another AS
		s := begin(t, nil)
		of := s.session()
		s.announce(of, attributes{extended: drops, first: 64499}, s.flow(drop8))
		s.after(time.Second)
		s.logs("its AS path does not begin with 64500")
	})
}

// Rules have the order of RFC 8955, section 5.1.
func TestPrecedes(t *testing.T) {
	order := []string{
		"01 18 c63300", "01 20 cb007107", "01 18 cb0071 02 20 c6336407", "01 18 cb0071 03 81 06 05 81 50", "01 18 cb0071 03 81 06",
		"01 18 cb0071 03 81 11", "01 18 cb0071", "02 20 c6336407", "03 81 06",
	}
	for i, a := range order {
		for n, b := range order {
			p, q := ruleOf(decode(t, bgp.RF_FS_IPv4_UC, a), false), ruleOf(decode(t, bgp.RF_FS_IPv4_UC, b), false)
			if got := p.precedes(&q); got != (cmp.Compare(i, n) < 0) {
				t.Errorf("%s precedes %s: %v", a, b, got)
			}
		}
	}
}

// A neighbor whose routes come and go costs the daemon few changes, and the log few lines.
func TestFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := begin(t, nil)
		of := s.session()
		for range 10_000 {
			s.announce(of, hole, unicast("203.0.113.7/32"))
			s.announce(of, hole, unicast("192.0.2.7/32"))
			time.Sleep(500 * time.Microsecond)
			s.withdraw(of, unicast("203.0.113.7/32"), unicast("192.0.2.7/32"))
			time.Sleep(500 * time.Microsecond)
		}
		s.after(time.Second)
		for range 5 {
			for i := range s.MaxRoutes {
				s.announce(of, hole, unicast(fmt.Sprintf("192.0.2.%d/32", i)))
			}
			time.Sleep(time.Second)
			for i := range s.MaxRoutes {
				s.withdraw(of, unicast(fmt.Sprintf("192.0.2.%d/32", i)))
			}
		}
		s.after(time.Second)
		s.d.mu.Lock()
		defer s.d.mu.Unlock()
		if lines := strings.Count(s.log.String(), "\n"); s.d.changes > 250 || lines > 18*mostLines {
			t.Errorf("%d changes, %d lines in 17 s", s.d.changes, lines)
		}
	})
}
