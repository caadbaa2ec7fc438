package daemon

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/maxmind/mmdbwriter/mmdbtype"

	"weir/tests/mmdb"
)

// Lists of countries and of autonomous systems drop what the databases have, also after a
// restart, follow a database that is replaced, and keep their contents when it is damaged.
func TestListsOfDatabases(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	countries := h.write("countries.mmdb", mmdb.New(t, map[string]mmdbtype.Map{
		"192.0.2.0/25": mmdb.Country("RU"), "192.0.2.128/25": mmdb.Country("DE"),
	}))
	systems := h.write("systems.mmdb", mmdb.New(t, map[string]mmdbtype.Map{
		"198.51.100.0/25":   mmdb.System(64496),
		"198.51.100.128/25": mmdb.System(64497),
	}))
	h.configure(h.B.Iface, `lists:
  countries:
    format: {kind: mmdb, countries: [RU]}
    sources: [{file: %s}]
  systems:
    format: {kind: asns, database: %s}
    entries: [AS64496]
`, countries, systems)
	load := startTraffic(h.t, h.Lab, nil, froms(netip.MustParseAddr("10.0.0.1")))
	d := h.start(releases[0])
	h.settled("countries")
	h.settled("systems")
	in := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	want := func(when string) {
		t.Helper()
		load.expect("listed, "+when, false, froms(in("192.0.2.0", "192.0.2.127", "198.51.100.0", "198.51.100.127")...)...)
		load.expect("others, "+when, true, froms(in("192.0.2.128", "198.51.100.128")...)...)
	}
	want("at first")
	for address, reason := range map[string]string{"192.0.2.9": "country RU", "198.51.100.9": "AS64496"} {
		if out := h.explained(address); !strings.Contains(out, reason) {
			t.Errorf("%s: no %q in\n%s", address, reason, out)
		}
	}
	d.kill()
	h.start(releases[0])
	want("after a restart")

	h.write("countries.mmdb", []byte("no database"))
	h.eventually("the damaged database is reported", func() bool {
		out, _ := h.status()
		return strings.Contains(out, "countries.mmdb")
	})
	want("beside a damaged database")
	h.write("countries.mmdb", mmdb.New(t, map[string]mmdbtype.Map{"203.0.113.0/24": mmdb.Country("RU"), "192.0.2.0/24": mmdb.Country("DE")}))
	h.eventually("the database is read again", func() bool { return strings.Contains(h.explained("203.0.113.9"), "country RU") })
	load.expect("listed by the new database", false, froms(in("203.0.113.9")...)...)
	load.expect("not any more", true, froms(in("192.0.2.0")...)...)
}
