package observe

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/conntrack"
	"weir/loader"
	"weir/tests/rules"
)

// A partner counts for each list that would drop its packets, unless an allow list lets them pass.
func TestAttribute(t *testing.T) {
	p := rules.Read(t)
	now := loader.Monotonic()
	partners := make(map[conntrack.Partner]conntrack.Conversation)
	for text, ago := range map[string]time.Duration{"192.0.2.9": time.Minute, "192.0.2.8": 30 * time.Hour, "192.0.2.77": 0, "203.0.113.1": 0} {
		partners[conntrack.Partner{Addr: netip.MustParseAddr(text)}] = conntrack.Conversation{How: conntrack.OpenedTCP, First: now - 40*time.Hour, Last: now - ago}
	}
	got := &api.Collateral{At: time.Now()}
	attribute(p, got, partners)
	a, b := got.Of("a"), got.Of("b")
	if got.Addresses != 4 || got.Of("friends") != nil || a == nil || b == nil {
		t.Fatalf("%+v", got)
	}
	if a.Addresses != 2 || a.Day != 1 || len(a.Latest) != 2 || a.Latest[0].Addr.String() != "192.0.2.9" || b.Addresses != 1 || b.Day != 1 {
		t.Errorf("%+v, %+v", a, b)
	}
	if of := a.Latest[1]; of.Direction != "in" || !slices.Equal(of.How, []string{"opened-tcp"}) || got.At.Sub(of.Last).Round(time.Hour) != 30*time.Hour || got.At.Sub(of.First).Round(time.Hour) != 40*time.Hour {
		t.Errorf("%+v", of)
	}
	r := NewConversations(nil, slog.New(slog.DiscardHandler))
	r.last.Store(got)
	if err := r.DropsPartners("a"); err == nil || r.DropsPartners("friends") != nil || !r.Records() {
		t.Errorf("what drops partners: %v, %v", err, r.DropsPartners("friends"))
	}
	if c := r.conversedOf("a"); c.Addresses != 1 || !slices.Equal(c.Latest, []string{"192.0.2.9"}) {
		t.Errorf("in a day: %+v", c)
	}
	if r.Forget(); r.DropsPartners("a") != nil || r.Records() {
		t.Error("what was forgotten is known")
	}
}
