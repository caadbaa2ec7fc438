package server

import (
	"context"
	"errors"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
	"weir/tests/wait"
)

// teller is a daemon whose events are sent to its channel.
type teller struct {
	source
	all   chan api.Event
	asked chan api.Events
	ended chan struct{}
}

func newTeller() teller {
	return teller{all: make(chan api.Event, 10), asked: make(chan api.Events, 1), ended: make(chan struct{}, 1)}
}

func (t teller) Subscribe(asked api.Events) (Subscription, error) {
	t.asked <- asked
	return t, nil
}

func (t teller) Next(ctx context.Context) (api.Event, bool) {
	select {
	case e, ok := <-t.all:
		return e, ok
	case <-ctx.Done():
		return api.Event{}, false
	}
}

func (t teller) Ready() bool { return len(t.all) > 0 }

func (t teller) Close() { t.ended <- struct{}{} }

var at = time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC)

// dropped is an event with all that there may be, and lost one of those that
// say what is missing.
var (
	dropped = api.Event{
		Time: at, Interface: "eth0", Netns: "lab", Direction: "in", Reason: "blocked", Verdict: "drop", List: "feed",
		Proto: "udp", Src: "192.0.2.1", SrcPort: new(int), Dst: "203.0.113.1", DstPort: new(53),
		Length: 60, OneIn: 4, Frame: []byte("frame"),
	}
	lost = api.Event{Time: at, Lost: 7}
)

// A client's request reaches the daemon, and each event arrives at once.
func TestEventsArrive(t *testing.T) {
	path, s := socket(t), newTeller()
	serve(t, path, s)
	asked := api.Events{Reasons: []string{"blocked", "heavy"}, Frames: true, Follow: true}
	n := 0
	s.all <- dropped
	all, err := client.Dial(path).Events(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range all {
		if err != nil {
			t.Fatal(err)
		}
		want := []api.Event{dropped, lost}[n]
		if !reflect.DeepEqual(*e, want) {
			t.Errorf("%+v, want %+v", *e, want)
		}
		if n++; n == 2 {
			break
		}
		s.all <- lost
	}
	if got := <-s.asked; !reflect.DeepEqual(got, asked) {
		t.Errorf("asked for %+v, want %+v", got, asked)
	}
	select {
	case <-s.ended:
	case <-time.After(wait.Patience):
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
		{"weir", true, func(s teller, _ context.CancelCauseFunc) { close(s.all) }, client.ErrStopped},
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
			all, err := client.Dial(path).Events(ctx, api.Events{Follow: c.follow})
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
		"follow=yes": `follow=\"yes\": want 0 or 1`,
		"frames=":    `frames=\"\": want 0 or 1`,
		"count=3":    `has no parameter \"count\": there are reason, frames, follow`,
	} {
		w := httptest.NewRecorder()
		Handler(daemon{newTeller(), nil}).ServeHTTP(w, httptest.NewRequest("GET", api.EventsPath+"?"+query, nil))
		if w.Code != 400 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s, want %s", query, w.Code, w.Body, want)
		}
	}
}
