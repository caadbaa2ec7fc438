package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"weir/control/observe/events"
	"weir/filter/key"
	"weir/filter/verdict"
	"weir/loader"
)

// teller is a daemon whose events are sent to its channel.
type teller struct {
	source
	all   chan events.Event
	asked chan events.Want
	ended chan struct{}
}

func newTeller() teller {
	return teller{all: make(chan events.Event, 10), asked: make(chan events.Want, 1), ended: make(chan struct{}, 1)}
}

func (t teller) Events(w events.Want) (<-chan events.Event, func()) {
	t.asked <- w
	return t.all, func() { t.ended <- struct{}{} }
}

var at = time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC)

// dropped is an event with all that there may be, and lost one of those that
// say what is missing.
var (
	dropped = events.Event{
		Time: at, Target: loader.Target{Netns: "lab", Iface: "eth0"}, Reason: verdict.Blocked, Dropped: true, List: "feed",
		Tuple: key.Tuple{
			Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true, DstPort: 53,
		},
		Length: 60, OneIn: 4, Frame: []byte("frame"),
	}
	lost = events.Event{Time: at, Lost: 7}
)

func TestEventLines(t *testing.T) {
	bare := dropped
	bare.Target, bare.List, bare.Tuple, bare.Frame = loader.Target{Iface: "eth0"}, "", key.Tuple{}, nil
	icmp := dropped
	icmp.Reason, icmp.Dropped, icmp.Frame = verdict.Allowed, false, nil
	icmp.Tuple = key.Tuple{Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db8::2"), Proto: 58}
	for _, c := range []struct {
		events.Event
		want string
	}{
		{dropped, `{"time":"2026-01-02T03:04:05.678901234Z","interface":"eth0","netns":"lab","direction":"in","reason":"blocked","verdict":"drop","list":"feed",` +
			`"proto":"udp","src":"192.0.2.1","src_port":0,"dst":"203.0.113.1","dst_port":53,"length":60,"one_in":4,"frame":"ZnJhbWU="}`},
		{bare, `{"time":"2026-01-02T03:04:05.678901234Z","interface":"eth0","direction":"in","reason":"blocked","verdict":"drop","length":60,"one_in":4}`},
		{icmp, `{"time":"2026-01-02T03:04:05.678901234Z","interface":"eth0","netns":"lab","direction":"in","reason":"allowed","verdict":"pass","list":"feed",` +
			`"proto":"icmp6","src":"2001:db8::1","dst":"2001:db8::2","length":60,"one_in":4}`},
		{lost, `{"time":"2026-01-02T03:04:05.678901234Z","lost":7}`},
	} {
		if got, err := json.Marshal(NewEvent(c.Event)); err != nil || string(got) != c.want {
			t.Errorf("%v\n%s\nwant\n%s", err, got, c.want)
		}
	}
}

// A client's request reaches the daemon, and each event arrives at once.
func TestEventsArrive(t *testing.T) {
	path, s := socket(t), newTeller()
	serve(t, path, s)
	asked := Events{Reasons: []verdict.Reason{verdict.Blocked, verdict.Heavy}, Frames: true, Follow: true}
	n := 0
	s.all <- dropped
	all, err := Dial(path).Events(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range all {
		if err != nil {
			t.Fatal(err)
		}
		want := NewEvent([]events.Event{dropped, lost}[n])
		if !reflect.DeepEqual(*e, want) {
			t.Errorf("%+v, want %+v", *e, want)
		}
		if n++; n == 2 {
			break
		}
		s.all <- lost
	}
	want := events.Want{Reasons: asked.Reasons, Frames: true}
	if got := <-s.asked; !reflect.DeepEqual(got, want) {
		t.Errorf("asked for %+v, want %+v", got, want)
	}
	select {
	case <-s.ended:
	case <-time.After(5 * time.Second):
		t.Error("the daemon goes on after the client has gone")
	}
}

// Events end with the second, with the client, or with weir.
func TestEventsEnd(t *testing.T) {
	enough := errors.New("enough")
	for _, c := range []struct {
		name   string
		follow bool
		stop   func(s teller, cancel context.CancelCauseFunc)
		want   error
	}{
		{"a second", false, func(teller, context.CancelCauseFunc) {}, nil},
		{"the client", true, func(_ teller, cancel context.CancelCauseFunc) { cancel(enough) }, enough},
		{"weir", true, func(s teller, _ context.CancelCauseFunc) { close(s.all) }, errStopped},
		{"weir, within the second", false, func(s teller, _ context.CancelCauseFunc) { close(s.all) }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, s := socket(t), newTeller()
			serve(t, path, s)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			began, n := time.Now(), 0
			var last error
			s.all <- dropped
			all, err := Dial(path).Events(ctx, Events{Follow: c.follow})
			if err != nil {
				t.Fatal(err)
			}
			for _, err := range all {
				if last = err; err == nil {
					n++
					c.stop(s, cancel)
				}
			}
			if took := time.Since(began); n != 1 || last != c.want || took > glance+5*time.Second {
				t.Errorf("%d events, then after %v %v, want %v", n, took, last, c.want)
			}
		})
	}
}

func TestEventsRefusals(t *testing.T) {
	for query, want := range map[string]string{
		"reason=blocked,none":       `unknown reason \"none\": want allowed, would-block, blocked`,
		"reason=blocked&reason=arp": "use tcpdump",
		"follow=yes":                `follow=\"yes\": want 0 or 1`,
		"frames=":                   `frames=\"\": want 0 or 1`,
		"count=3":                   `has no parameter \"count\": there are reason, frames, follow`,
	} {
		w := httptest.NewRecorder()
		Handler(daemon{newTeller(), nil}).ServeHTTP(w, httptest.NewRequest("GET", eventsPath+"?"+query, nil))
		if w.Code != 400 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s, want %s", query, w.Code, w.Body, want)
		}
	}
}

// A query is read as it was written.
func TestEventsQuery(t *testing.T) {
	for _, want := range []Events{
		{}, {Frames: true}, {Follow: true}, {Reasons: events.Reasons(), Frames: true, Follow: true},
	} {
		q := httptest.NewRequest("GET", eventsPath+"?"+want.query(), nil)
		if got, err := readEvents(q.URL.Query()); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v, want %+v", want.query(), got, err, want)
		}
	}
}
