package ruleset

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weir/control/config"
	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/verdict"
)

// Servers of notifications are not to be cut off, as far as they are known.
func TestNotificationsAreGuarded(t *testing.T) {
	c := &config.Config{}
	c.Interfaces = []config.Interface{{Name: "lo"}}
	all, err := peers(c, nil, map[string][]netip.Addr{"notification target pager": {netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("127.0.0.1")}})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(p Peer) bool { return p.What == "the server 192.0.2.9 of notification target pager" })
	if i < 0 || len(Objections([]engine.List{{Contents: list.SetOf(key.Source(netip.MustParsePrefix("192.0.2.0/24")))}}, &verdict.Policy{}, all[i:i+1])) != 1 {
		t.Errorf("peers: %+v", all)
	}
	if slices.ContainsFunc(all, func(p Peer) bool { return strings.Contains(p.What, "127.0.0.1 of notification") }) {
		t.Errorf("a server of this host is a peer: %+v", all)
	}
}
