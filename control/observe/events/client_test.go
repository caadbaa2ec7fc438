package events

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/key"
	"weir/filter/verdict"
	"weir/loader/netif"
)

func TestAPI(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC)
	dropped := Event{
		Time: at, Target: netif.Target{Netns: "lab", Iface: "eth0"}, Reason: verdict.Blocked, Dropped: true, List: "feed",
		Tuple: key.Tuple{
			Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true, DstPort: 53,
		},
		Length: 60, OneIn: 4, Frame: []byte("frame"),
	}
	bare := dropped
	bare.Target, bare.List, bare.Tuple, bare.Frame = netif.Target{Iface: "eth0"}, "", key.Tuple{}, nil
	icmp := dropped
	icmp.Reason, icmp.Dropped, icmp.Frame = verdict.Allowed, false, nil
	icmp.Tuple = key.Tuple{Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db8::2"), Proto: 58}
	for _, c := range []struct {
		Event
		want string
	}{
		{dropped, `{"time":"2026-01-02T03:04:05.678901234Z","interface":"eth0","netns":"lab","direction":"in","reason":"blocked","verdict":"drop","list":"feed",` +
			`"proto":"udp","src":"192.0.2.1","src_port":0,"dst":"203.0.113.1","dst_port":53,"length":60,"one_in":4,"frame":"ZnJhbWU="}`},
		{bare, `{"time":"2026-01-02T03:04:05.678901234Z","interface":"eth0","direction":"in","reason":"blocked","verdict":"drop","length":60,"one_in":4}`},
		{icmp, `{"time":"2026-01-02T03:04:05.678901234Z","interface":"eth0","netns":"lab","direction":"in","reason":"allowed","verdict":"pass","list":"feed",` +
			`"proto":"icmp6","src":"2001:db8::1","dst":"2001:db8::2","length":60,"one_in":4}`},
		{Event{Time: at, Lost: 7}, `{"time":"2026-01-02T03:04:05.678901234Z","lost":7}`},
	} {
		if got, err := json.Marshal(c.Event.API()); err != nil || string(got) != c.want {
			t.Errorf("%v\n%s\nwant\n%s", err, got, c.want)
		}
	}
}

func TestSubscriptionRefused(t *testing.T) {
	for _, c := range []struct {
		reasons []string
		want    string
	}{
		{[]string{"blocked", "none"}, `unknown reason "none": want allowed, would-block, blocked`},
		{[]string{"blocked", "arp"}, "use tcpdump"},
	} {
		var bad *api.BadRequest
		if _, err := new(Hub).Subscription(api.Events{Reasons: c.reasons}); !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %s", c.reasons, err, c.want)
		}
	}
}
