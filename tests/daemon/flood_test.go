package daemon

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/wait"
)

// A flood from the addresses of users is named, and the command that is proposed stops it and none of
// them. It goes on in what weir says over kill -9, and is over when it is.
func TestFlood(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {manual: {}}\n")
	d := h.start(releases[0])
	to := netip.MustParseAddr("203.0.113.1")
	h.A.StartFlood(t, 0.05, func(src netip.Addr) []byte {
		n := uint16(src.As4()[3])
		frame := packet.Frame(key.Tuple{Src: src, Dst: to, Proto: 17, HasPorts: true, SrcPort: 40_000 + n, DstPort: 443})
		return append(frame, make([]byte, 2*n)...)
	})
	floods := func(what string, is func(*api.Floods) bool) *api.Floods {
		t.Helper()
		var now *api.Floods
		wait.For(t, what, func() bool {
			var err error
			now, err = h.api.Floods(t.Context())
			return err == nil && is(now)
		})
		return now
	}
	floods("a baseline", func(f *api.Floods) bool { return f.Quiet >= 12 && f.Now == nil })
	if out := h.succeeds("", "flood"); !strings.HasPrefix(out, "no flood: ") {
		t.Errorf("before the flood: %s", out)
	}
	answer := func(src netip.Addr) []byte {
		return append(packet.Frame(key.Tuple{Src: src, Dst: to, Proto: 17, HasPorts: true, SrcPort: 123, DstPort: 443}), make([]byte, 440)...)
	}
	if err := h.A.Sender(t).Send(answer(netip.MustParseAddr("198.51.100.7"))); err != nil {
		t.Fatal(err)
	}
	first := time.Now()
	floods("a second with the flood's first packet, which is not usual", func(f *api.Floods) bool { return f.Time.After(first) })
	began := time.Now()
	// At the other end: nothing of the flood comes any more, and the users do.
	var flooded, users, last atomic.Int64
	rx := h.B.Receiver(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			frame, err := rx.Receive(time.Second)
			if t.Context().Err() != nil {
				return
			}
			if p, _ := packet.Parse(frame); err != nil || !p.HasAddresses {
				continue
			} else if p.SrcPort == 123 {
				flooded.Add(1)
				last.Store(int64(time.Since(began)))
			} else if p.DstPort == 443 {
				users.Add(1)
			}
		}
	}()
	t.Cleanup(func() { <-ended })
	flood := h.A.StartFlood(t, 1, answer)
	f := floods("a flood", func(f *api.Floods) bool { return f.Now != nil && f.Now.Kind == api.FloodRuled })
	t.Logf("named after %v: %v; %s", time.Since(began).Round(time.Millisecond), f.Now.Is(), f.Now.Do())
	if f.Now.Destination != to.String() || f.Now.Dropped != 0 || f.Now.Begin.After(time.Now()) || f.Now.Begin.Before(began.Add(-2*time.Second)) {
		t.Errorf("%+v", f.Now)
	}
	proposed := strings.TrimSpace(h.succeeds("", "flood", "--propose"))
	if want := "weir limit --ttl 10m --trial 2s '" + f.Now.Rules[0].Pattern + "' 0pps"; proposed != want {
		t.Fatalf("proposed: %q, want %q", proposed, want)
	}
	rehearsing, before := time.Now(), flooded.Load()
	rehearsed := h.succeeds("", "flood", "--rehearse", "1s")
	var matched int64
	if _, err := fmt.Sscanf(strings.ReplaceAll(rehearsed, ",", ""), f.Now.Rules[0].Pattern+": in 1s %d packets", &matched); err != nil || matched < 100 {
		t.Errorf("rehearsed: %q, %v", rehearsed, err)
	}
	if s, err := h.api.Status(t.Context()); err != nil || len(s.Policed) > 0 {
		t.Errorf("after the rehearsal: %+v, %v", s.Policed, err)
	}
	wait.For(t, "that the flood comes through as before", func() bool { return flooded.Load()-before >= matched })
	took := time.Since(rehearsing)
	h.succeeds("", "flood", "--apply", "all", "--trial", "1s")
	floods("that weir drops it", func(f *api.Floods) bool { return f.Now != nil && f.Now.Dropped == 1 })
	t.Logf("the last of %d packets of the flood came %v after the first, without the rehearsal's %v",
		flooded.Load(), (time.Duration(last.Load()) - took).Round(time.Millisecond), took.Round(time.Millisecond))
	flooded.Store(0)
	users.Store(0)

	wait.For(t, "users' packets", func() bool { return users.Load() > 500 })
	if n := flooded.Load(); n != 0 {
		t.Errorf("%d packets of the flood came through", n)
	}
	if do := floods("the flood", func(f *api.Floods) bool { return f.Now != nil }).Now.Do(); do != "nothing: weir drops it" {
		t.Error(do)
	}
	since := f.Now.Begin
	d.kill()
	d = h.start(releases[0])
	f = floods("the flood after kill -9", func(f *api.Floods) bool { return f.Now != nil })
	if !f.Now.Begin.Equal(since) || f.Now.Kind != api.FloodRuled {
		t.Errorf("after kill -9: %+v", f.Now)
	}
	flood.Stop()
	floods("its end", func(f *api.Floods) bool { return f.Now == nil && len(f.Past) == 1 })
	if out := h.succeeds("", "flood", "--history"); strings.Count(out, "\n") != 2 || !strings.Contains(out, "sport 123") {
		t.Errorf("afterwards:\n%s", out)
	}
	d.stop()
	h.start(releases[0])
	var past api.Floods
	if err := json.Unmarshal([]byte(h.succeeds("", "flood", "--json")), &past); err != nil || len(past.Past) != 1 || !past.Past[0].Begin.Equal(since) {
		t.Errorf("after a restart: %v, %+v", err, past)
	}
}

// Where the configuration says so, what is sure is dropped at once, on trial first, and users pass.
func TestFloodAuto(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "collateral: 2048\nfailsafe: {ports: [tcp/22]}\nflood: {apply: auto, ttl: 1h, trial: 1s}\nlists: {manual: {}}\n")
	h.start(releases[0])
	to := netip.MustParseAddr("203.0.113.1")
	h.A.StartFlood(t, 0.05, func(src netip.Addr) []byte {
		n := uint16(src.As4()[3])
		frame := packet.Frame(key.Tuple{Src: src, Dst: to, Proto: 17, HasPorts: true, SrcPort: 40_000 + n, DstPort: 443})
		return append(frame, make([]byte, 2*n)...)
	})
	wait.For(t, "a baseline", func() bool {
		f, err := h.api.Floods(t.Context())
		return err == nil && f.Quiet >= 12 && f.Now == nil
	})
	began := time.Now()
	h.A.StartFlood(t, 1, func(src netip.Addr) []byte {
		return append(packet.Frame(key.Tuple{Src: src, Dst: to, Proto: 17, HasPorts: true, SrcPort: 123, DstPort: 443}), make([]byte, 440)...)
	})
	wait.For(t, "that weir drops it", func() bool {
		f, err := h.api.Floods(t.Context())
		return err == nil && f.Now != nil && f.Now.Dropped == 1
	})
	t.Logf("known to be dropped %v after its first packet", time.Since(began).Round(time.Millisecond))
	s, err := h.api.Status(t.Context())
	if err != nil || len(s.Policed) != 1 || !s.Policed[0].Dropping() || s.Policed[0].Reason != "flood.apply: auto" || s.Policed[0].Hits.Conversing != 0 {
		t.Errorf("%+v, %v", s.Policed, err)
	}
	wait.For(t, "a line in the audit", func() bool {
		a, err := h.api.Audit(t.Context(), 20)
		return err == nil && slices.ContainsFunc(a.Changes, func(r api.AuditRecord) bool { return r.Change == "limit" && r.Source == "flood" })
	})
	rx, users := h.B.Receiver(t), 0
	for users < 200 {
		frame, err := rx.Receive(wait.Patience)
		if err != nil {
			t.Fatal(err)
		}
		if p, _ := packet.Parse(frame); p.HasAddresses && p.SrcPort == 123 {
			t.Fatal("a packet of the flood came through")
		} else if p.HasAddresses && p.DstPort == 443 {
			users++
		}
	}
}
