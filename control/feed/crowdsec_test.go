package feed

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	steady "weir/control/clock"
	"weir/filter/key"
	"weir/tests/clock"
)

// lapi imitates CrowdSec's local API: it returns all decisions or, since its
// last answer, the new and the deleted ones.
type lapi struct {
	*server
	asked  []string // queries
	next   string   // the next answer
	answer func(http.ResponseWriter)
}

func newLAPI(t *testing.T) *lapi {
	a := &lapi{}
	a.server = serve(t, func(w http.ResponseWriter, r *http.Request) {
		// The local API wants a name and a version, and takes no other slash.
		if name, version, ok := strings.Cut(r.Header.Get("User-Agent"), "/"); !ok || name != "crowdsec-weir-bouncer" || version != "v1.2-3" {
			t.Errorf("User-Agent %q", r.Header.Get("User-Agent"))
		}
		if r.URL.Path != "/v1/decisions/stream" || r.Header.Get("X-Api-Key") != "key" {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"message":"access forbidden"}`)
			return
		}
		a.asked = append(a.asked, r.URL.RawQuery)
		if a.answer != nil {
			a.answer(w)
			return
		}
		fmt.Fprint(w, a.next)
	})
	return a
}

func (a *lapi) config() Config {
	s := from(a.server)
	s.URL = URL(a.URL + "?origins=cscli")
	s.Headers = map[string]string{"X-Api-Key": "key"}
	c := named("crowdsec", Format{Kind: CrowdSec}, s)
	c.Version = "v1.2/3"
	return c
}

func ban(value, duration string) string {
	return fmt.Sprintf(`{"duration":%q,"id":1,"origin":"cscli","scenario":"manual 'ban'","scope":"Ip","type":"ban","value":%q}`, duration, value)
}

func decided(added, deleted string) string {
	return `{"deleted":` + deleted + `,"new":` + added + `}`
}

func TestCrowdSec(t *testing.T) {
	a, dir := newLAPI(t), t.TempDir()
	f := mustOpen(t, a.config(), dir)
	step := func(name, next string, result Result, failure Failure, entries string) {
		t.Helper()
		a.next = next
		o := fetch(t, f)
		if o.Result != result || o.Failure != failure {
			t.Errorf("%s: %v (%v), %v", name, o.Result, o.Failure, o.Err)
		}
		if got := strings.Join(textsOf(f.Contents()), " "); got != entries {
			t.Errorf("%s: %s, want %s", name, got, entries)
		}
	}
	restart := func() { f = mustOpen(t, a.config(), dir) }

	step("nothing yet", decided("null", "null"), New, NoFailure, "")
	restart()
	if !f.Known() {
		t.Error("after a restart, nothing yet: a start would wait for it")
	}
	step("nothing after a restart", decided("null", "null"), Unchanged, NoFailure, "")
	step("still nothing", decided("[]", "[]"), Unchanged, NoFailure, "")
	step("new", decided("["+ban("192.0.2.1", "3h59m57.123456789s")+","+
		`{"duration":"4h","scope":"Range","type":"ban","value":"198.51.100.7/24"},`+ // a network, whatever its host bits
		`{"duration":"4h","scope":"Ip","type":"captcha","value":"192.0.2.8"},`+
		`{"duration":"4h","scope":"Ip","type":"ban","value":"192.0.2.9","simulated":true},`+
		`{"duration":"4h","scope":"Country","type":"ban","value":"FR"}`+"]", "[]"), New, NoFailure, "192.0.2.1 198.51.100.0/24")
	step("more", decided("["+ban("2001:db8::1", "1h")+"]", "null"), New, NoFailure, "192.0.2.1 198.51.100.0/24 2001:db8::1")
	step("deleted and renewed", decided("["+ban("192.0.2.1", "1h")+"]", "["+ban("192.0.2.1", "-1s")+","+ban("2001:db8::1", "-1s")+"]"), New, NoFailure, "192.0.2.1 198.51.100.0/24")
	restart()
	if got := strings.Join(textsOf(f.Contents()), " "); got != "192.0.2.1 198.51.100.0/24" {
		t.Errorf("after a restart: %s", got)
	}
	step("all", decided("["+ban("192.0.2.1", "2h")+","+ban("198.51.100.7/24", "4h")+"]", "null"), New, NoFailure, "192.0.2.1 198.51.100.0/24")
	step("garbage", "<html>", Failed, Garbage, "192.0.2.1 198.51.100.0/24")
	step("something else", `{"message":"x"}`, Failed, Garbage, "192.0.2.1 198.51.100.0/24")
	if err := f.Status().Sources[0].Last.Err; !strings.Contains(err.Error(), "CrowdSec's local API") {
		t.Error(err)
	}
	step("cut", decided("["+ban("192.0.2.1", "1h")+"]", "[]")[:60], Failed, Truncated, "192.0.2.1 198.51.100.0/24")
	step("empty", "", Failed, Truncated, "192.0.2.1 198.51.100.0/24")
	step("no duration", decided("["+ban("192.0.2.1", "soon")+"]", "[]"), Failed, Garbage, "192.0.2.1 198.51.100.0/24")
	step("no address", decided("["+ban("192.0.2.1 x", "1h")+"]", "[]"), Failed, Garbage, "192.0.2.1 198.51.100.0/24")
	step("suddenly empty", decided("[]", "[]"), Failed, Empty, "192.0.2.1 198.51.100.0/24")
	step("all again", decided("["+ban("192.0.2.1", "1h")+"]", "null"), New, NoFailure, "192.0.2.1")
	step("all deleted", decided("null", "["+ban("192.0.2.1", "-1s")+"]"), New, NoFailure, "")

	var startup []string
	for _, q := range a.asked {
		startup = append(startup, strings.TrimPrefix(q, "origins=cscli&startup="))
	}
	if got, want := strings.Join(startup, " "), "true true false false false false true false true true true true true true true false"; got != want {
		t.Errorf("startup\n%s, want\n%s", got, want)
	}
}

// What CrowdSec says of its decisions is found with the entries, also after a restart,
// whatever the texts contain.
func TestCrowdSecDecisions(t *testing.T) {
	a, dir := newLAPI(t), t.TempDir()
	a.next = decided(`[{"duration":"4h","origin":"crowdsec","scenario":"crowdsecurity/ssh-bf","scope":"Ip","type":"ban","value":"192.0.2.1"},
		{"duration":"1h","origin":"a\tb\n192.0.2.99","scenario":"`+strings.Repeat("x", 300)+`\u001b[31m","scope":"Range","type":"ban","value":"198.51.100.7/24"}]`, "null")
	f := mustOpen(t, a.config(), dir)
	began := time.Now().Truncate(time.Second)
	want(t, f, fetch(t, f), New, NoFailure, "192.0.2.1 198.51.100.0/24")
	check := func(when string) {
		t.Helper()
		one, network := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("198.51.100.0/24")
		got := f.Find([]key.Key{key.Source(one), key.Destination(network), key.Source(netip.MustParsePrefix("192.0.2.2/32"))})
		if got[2] != (Origin{}) {
			t.Fatalf("%s: %+v", when, got)
		}
		d := got[0]
		if left := d.Expires.Sub(began); d.By != "crowdsec" || d.Reason != "crowdsecurity/ssh-bf" || left < 4*time.Hour || left > 4*time.Hour+30*time.Second ||
			d.Added.Before(began) || d.Added.After(time.Now()) {
			t.Errorf("%s: %+v", when, d)
		}
		if d := got[1]; d.By != "a b 192.0.2.99" || d.Reason != strings.Repeat("x", maxSaid) {
			t.Errorf("%s: %+v", when, d)
		}
		n := 0
		for p := range f.Decisions() {
			if n++; p != one && p != network {
				t.Errorf("%s: a decision on %v", when, p)
			}
		}
		if n != 2 {
			t.Errorf("%s: %d decisions", when, n)
		}
	}
	check("fetched")
	f = mustOpen(t, a.config(), dir)
	check("after a restart")
}

// What earlier versions have saved has no more than an address and an expiry.
func TestParseDecisions(t *testing.T) {
	d, err := parseDecisions(strings.NewReader("192.0.2.1\t2026-01-02T03:04:05Z\n"), nil)
	if err != nil || len(d) != 1 || d["192.0.2.1"].Expires.Year() != 2026 || !d["192.0.2.1"].Added.IsZero() {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestCrowdSecFaults checks that transport failures are classified here, too.
func TestCrowdSecFaults(t *testing.T) {
	a := newLAPI(t)
	c := a.config()
	for name, failure := range map[string]Failure{"cut": Truncated, "large": TooLarge, "stall": Stalled} {
		a.answer = func(w http.ResponseWriter) {
			switch name {
			case "cut":
				w.Header().Set("Content-Length", "1000")
				fmt.Fprint(w, `{"new":[`)
			case "large":
				fmt.Fprint(w, `{"new":["`+strings.Repeat("x", 100_000)+`"]}`)
			case "stall":
				fmt.Fprint(w, `{"new":[`)
				w.(http.Flusher).Flush()
				time.Sleep(time.Second)
			}
		}
		if failure == Stalled {
			c.Sources[0].StallTimeout = 500 * time.Millisecond
		}
		f := mustOpen(t, c, t.TempDir())
		want(t, f, fetch(t, f), Failed, failure, "")
		c.Sources[0].StallTimeout = 0
	}
	c.Sources[0].Headers = nil
	f := mustOpen(t, c, t.TempDir())
	want(t, f, fetch(t, f), Failed, BadStatus, "")
}

// TestExpiry checks that decisions expire on time even if the API does not
// answer or no process was running.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		c := named("crowdsec", Format{Kind: CrowdSec}, Source{URL: "http://192.0.2.1"})
		f := mustOpen(t, c, dir)
		s := f.sources[0]
		s.client.Transport = roundTripper(func(*http.Request) (*http.Response, error) {
			return nil, os.ErrDeadlineExceeded
		})

		// As after a successful attempt.
		s.decisions = decisions{"192.0.2.1": {Expires: time.Now().Add(time.Minute)}, "192.0.2.2": {Expires: time.Now().Add(time.Hour)}, "192.0.2.3": {Expires: time.Now().Add(2 * time.Hour)}}
		to := &spool{path: s.saved}
		held, err := f.receive(nil, s, s.decisions.body(s.name, nil), to)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(to.finish(held.record), f.promote(s, held)); err != nil {
			t.Fatal(err)
		}
		held.saved = true
		s.current = held

		step := func(after time.Duration, changed bool, entries string) {
			t.Helper()
			time.Sleep(after)
			o := fetch(t, f)
			if got := strings.Join(textsOf(f.Contents()), " "); o.Failure != Unreachable || o.Changed != changed || got != entries {
				t.Errorf("after %v: %+v, %s, want %s", after, o, got, entries)
			}
		}
		step(59*time.Second, false, "192.0.2.1 192.0.2.2 192.0.2.3")
		step(time.Second, true, "192.0.2.2 192.0.2.3")
		step(time.Second, false, "192.0.2.2 192.0.2.3")
		time.Sleep(time.Hour)
		f = mustOpen(t, c, dir)
		if got := strings.Join(textsOf(f.Contents()), " "); got != "192.0.2.3" {
			t.Errorf("after a restart: %s", got)
		}
	})
}

// A step of the wall clock, as at the first answer of a time server, ends no decisions.
func TestClockSteps(t *testing.T) {
	now := time.Now()
	answer := strings.NewReader(decided("["+ban("192.0.2.1", "4h0m0.5s")+"]", "null"))
	left := int64(answer.Len())
	d, _, _, err := decisions{}.update(&input{r: answer, left: &left, to: io.Discard}, 10, now)
	if err != nil || len(d) != 1 {
		t.Fatalf("%v, %v", d, err)
	}
	if _, ended := d.active(clock.Set(t, now, 100*24*time.Hour)); len(ended) > 0 {
		t.Errorf("a step of the clock ends %q", ended)
	}
	if _, ended := d.active(now.Add(4 * time.Hour)); len(ended) > 0 {
		t.Errorf("%q ends too early", ended)
	}
	if _, ended := d.active(now.Add(4*time.Hour + 2*time.Second)); len(ended) != 1 {
		t.Error("a decision does not end")
	}
	part, err := d.body("x", nil).parts[0].open()
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	saved, err := parseDecisions(part, nil)
	if e := saved["192.0.2.1"]; err != nil || e.Expires.Sub(d["192.0.2.1"].Expires).Abs() > time.Millisecond || e.Expires.Sub(now) < 4*time.Hour {
		t.Errorf("saved: %+v, %v; of %v, now %v", saved, err, d["192.0.2.1"].Expires, now)
	}
}

// However the clock is set before a restart, decisions last as long as they would have.
func TestClockIsSetBeforeRestart(t *testing.T) {
	m, dir, log := clock.NewMachine(t), t.TempDir(), slog.New(slog.DiscardHandler)
	again := func() *steady.Clock {
		c := steady.Open(m.Host(), dir, log)
		c.Save()
		return c
	}
	d := decisions{"192.0.2.1": {Expires: m.Now().Add(4 * time.Hour), Added: m.Now()}}
	for _, ahead := range []time.Duration{365 * 24 * time.Hour, -3650 * 24 * time.Hour, 0} {
		text, err := d.body("x", again()).parts[0].open()
		if err != nil {
			t.Fatal(err)
		}
		m.Set(ahead, true)
		m.Pass(time.Hour)
		if d, err = parseDecisions(text, again()); err != nil {
			t.Fatal(err)
		}
		if _, ended := d.active(m.Now()); len(ended) > 0 {
			t.Errorf("the clock is ahead by %v: %q has ended", ahead, ended)
		}
	}
	if _, ended := d.active(m.Now().Add(59 * time.Minute)); len(ended) > 0 {
		t.Error("a decision has ended early")
	}
	if _, ended := d.active(m.Now().Add(61 * time.Minute)); len(ended) == 0 {
		t.Error("a decision does not end")
	}
}

// Where a decision has ended here and CrowdSec does not delete it, all are asked for: it sends
// a decision once.
func TestCrowdSecEndsTooEarly(t *testing.T) {
	a := newLAPI(t)
	f := mustOpen(t, a.config(), t.TempDir())
	step := func(next, entries, query string) {
		t.Helper()
		a.next = next
		if o := fetch(t, f); o.Err != nil {
			t.Error(o.Err)
		}
		if got := strings.Join(textsOf(f.Contents()), " "); got != entries {
			t.Errorf("%s, want %s", got, entries)
		}
		if got := a.asked[len(a.asked)-1]; got != "origins=cscli&startup="+query {
			t.Errorf("asked for %s, want startup=%s", got, query)
		}
	}
	end := func(value string) {
		s := f.sources[0]
		s.decisions = maps.Clone(s.decisions)
		s.decisions[value] = Decision{Expires: time.Now()}
	}
	both := "[" + ban("192.0.2.1", "1h") + "," + ban("192.0.2.2", "1h") + "]"
	step(decided(both, "null"), "192.0.2.1 192.0.2.2", "true")
	end("192.0.2.1")
	step(decided("null", "["+ban("192.0.2.1", "-1s")+"]"), "192.0.2.2", "false")
	end("192.0.2.2")
	step(decided("["+ban("192.0.2.2", "1h")+"]", "null"), "192.0.2.2", "false")
	end("192.0.2.2")
	step(decided("null", "null"), "", "false")
	step(decided(both, "null"), "192.0.2.1 192.0.2.2", "true")
	step(decided("null", "null"), "192.0.2.1 192.0.2.2", "false")
}

// backThen is a time.
var backThen = time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)

type roundTripper func(*http.Request) (*http.Response, error)

func (rt roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return rt(r) }

// After an absence, in which most decisions have expired, CrowdSec may have many new ones.
func TestAfterAbsence(t *testing.T) {
	a, dir := newLAPI(t), t.TempDir()
	c := a.config()
	c.Sources[0].MaxBytes = 16 << 20
	a.next = decided("["+ban("192.0.2.1", "1h")+"]", "null")
	fetch(t, mustOpen(t, c, dir))
	var all []string
	for address := range strings.FieldsSeq(addresses(20_011)) {
		all = append(all, ban(address, "1h"))
	}
	a.next = decided("["+strings.Join(all, ",")+"]", "null")
	if o := fetch(t, mustOpen(t, c, dir)); o.Result != New || o.Entries != len(all) {
		t.Errorf("%d entries: %v", o.Entries, o.Err)
	}
}
