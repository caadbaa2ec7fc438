package hosts

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/maxmind/mmdbwriter/mmdbtype"

	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/mmdb"
)

// writeDatabase writes a database in which a network has a record.
func (h *host) writeDatabase(t *testing.T, name, network string, record mmdbtype.Map) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, name), mmdb.New(t, map[string]mmdbtype.Map{network: record}), 0o644); err != nil {
		t.Fatal(err)
	}
}

// echoes reports whether a ping from the machine is answered.
func (h machine) echoes(t *testing.T, address string) (answered bool) {
	t.Helper()
	h.In(t, func() {
		c, err := net.Dial("ip4:icmp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		// Type 8, code 0, and the checksum of nothing else.
		if _, err := c.Write([]byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(time.Second))
		_, err = c.Read(make([]byte, 100))
		answered = err == nil
	})
	return answered
}

// Each configuration of the page loads, the commands of its section succeed, and it
// drops and passes as the other would. Feeds, which cannot be fetched here, have entries instead.
func TestMigrating(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	text, err := os.ReadFile("../../docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	const http, ssh = hostAddress + ":80", hostAddress + ":8443"
	for _, c := range []struct {
		tool     string
		setup    string
		feeds    []string            // what stands on the page, and the entries instead
		reach    map[string][]string // services that a source reaches
		dropped  map[string][]string // and that it does not
		outgoing map[string]bool     // addresses, and whether the host reaches them
		more     func(t *testing.T, h *host, clients machine)
	}{
		{
			tool: "banIP",
			setup: `mkdir /etc/banip
				echo 192.0.2.33 >/etc/banip/banip.blocklist
				echo '192.0.2.34  # added on 2026-01-01 09:00:00' >/etc/banip/banip.allowlist`,
			feeds:   []string{"{feed: blocklist_de}", "{entries: [192.0.2.30, 192.0.2.34]}", "feed: doh", "entries: [192.0.2.35]"},
			reach:   map[string][]string{client: {http}, "192.0.2.34": {http}, "192.0.2.30": {hostAddress + ":443"}},
			dropped: map[string][]string{"192.0.2.30": {http}, "192.0.2.31": {http}, "192.0.2.32": {http}, "192.0.2.33": {http}},
			outgoing: map[string]bool{
				"192.0.2.35:443": false, "192.0.2.35:8080": true, "192.0.2.30:8080": true, // to a listed one: its replies pass
			},
		},
		{
			tool: "pfBlockerNG",
			setup: `for i in 1 2 3 4 5; do echo 198.51.100.$i; done >/etc/weir/scanners.txt
				mv /var/lib/GeoIP/dbip-country-lite.mmdb /var/lib/GeoIP/GeoLite2-Country.mmdb`,
			feeds: []string{"{feed: firehol_level1}", "{entries: [192.0.2.30, 192.0.2.42]}", "feed: feodo", "entries: [192.0.2.35]"},
			reach: map[string][]string{client: {http, ssh}, "192.0.2.41": {http}, "192.0.2.42": {http}, "198.51.100.1": {http}, "198.51.100.99": {http}},
			dropped: map[string][]string{
				"192.0.2.30": {http}, "192.0.2.31": {http}, "192.0.2.40": {http}, "198.51.100.1": {ssh}, "198.51.100.99": {ssh},
			},
			outgoing: map[string]bool{"192.0.2.35:443": false, "192.0.2.36:443": true},
			more: func(t *testing.T, h *host, _ machine) {
				if out, _ := h.in(t, "weir status"); !strings.Contains(out, "would-block") {
					t.Errorf("nothing of the list on trial is counted:\n%s", out)
				}
			},
		},
		{
			tool:    "XDP-Firewall",
			reach:   map[string][]string{client: {http, hostAddress + ":27015"}, "10.50.0.4": {hostAddress + ":27015"}},
			dropped: map[string][]string{"10.50.0.4": {http}},
			more: func(t *testing.T, h *host, clients machine) {
				if clients.echoes(t, hostAddress) {
					t.Error("a ping is answered")
				}
				if out, code := h.in(t, "weir flush drop --yes 2>&1 || weir monitor on"); code != 0 || !clients.echoes(t, hostAddress) {
					t.Errorf("a ping is not answered by a host that drops nothing\n%s", out)
				}
			},
		},
		{
			tool: "ipset-blacklist",
			setup: `mkdir /etc/ipset-blacklist
				echo 192.0.2.33 >/etc/ipset-blacklist/ip-blacklist-custom.list`,
			feeds:   []string{"{feed: spamhaus_drop}", "{entries: [192.0.2.30, 192.0.2.50]}", "{feed: firehol_level1}", "{entries: [192.0.2.31]}"},
			reach:   map[string][]string{client: {http}, "192.0.2.50": {http}},
			dropped: map[string][]string{"192.0.2.30": {http}, "192.0.2.31": {http}, "192.0.2.33": {http}},
		},
	} {
		t.Run(c.tool, func(t *testing.T) {
			t.Parallel()
			_, section, found := strings.Cut(string(text), "\n## "+c.tool+"\n")
			if !found {
				t.Fatal("the page has no such section")
			}
			section, _, _ = strings.Cut(section, "\n## ")
			p := parsePage(section)
			h, clients, _ := newServer(t)
			for i := 0; i < len(c.feeds); i += 2 {
				if !strings.Contains(p.config, c.feeds[i]) {
					t.Fatalf("the page has no %s", c.feeds[i])
				}
			}
			h.writeDatabase(t, "country", "192.0.2.31/32", mmdb.Country("RU"))
			h.writeDatabase(t, "asn", "192.0.2.32/32", mmdb.System(64496))
			must(t, h, `set -e
				for i in $(seq 30 50); do ip -n `+clients.Netns+` address add 192.0.2.$i/24 dev eth0; done
				for a in 10.50.0.4 198.51.100.1 198.51.100.99; do
					ip -n `+clients.Netns+` address add $a/32 dev eth0
					ip -n NS route add $a/32 dev eth0
				done
				mkdir /var/lib/GeoIP
				cp DIR/country /var/lib/GeoIP/dbip-country-lite.mmdb
				cp DIR/asn /var/lib/GeoIP/dbip-asn-lite.mmdb
				`+c.setup)
			must(t, h, "cat >/etc/weir/weir.yaml <<'CONFIG'\n"+strings.NewReplacer(c.feeds...).Replace(p.config)+"CONFIG")
			for _, port := range []string{":80", ":443", ":8443", ":27015"} {
				h.serve(t, hostAddress+port)
			}
			for _, command := range p.commands {
				switch {
				case command == "systemctl enable --now weir":
					h.start(t)
				case strings.HasPrefix(command, "weir "):
					if out, code := h.in(t, command+" 2>&1"); code != 0 && !(code == 4 && command == "weir status") {
						t.Errorf("%s: exit code %d\n%s", command, code, out)
					}
				}
			}
			if out, code := h.in(t, "weir monitor off"); code != 0 {
				t.Fatalf("exit code %d\n%s", code, out)
			}
			for from, services := range c.reach {
				for _, to := range services {
					if !clients.reachesFrom(t, from, to) {
						out, _ := h.in(t, "weir explain "+from)
						t.Errorf("%s does not reach %s\n%s", from, to, out)
					}
				}
			}
			for from, services := range c.dropped {
				for _, to := range services {
					if clients.reachesFrom(t, from, to) {
						out, _ := h.in(t, "weir explain "+from)
						t.Errorf("%s reaches %s\n%s", from, to, out)
					}
				}
			}
			for to, want := range c.outgoing {
				clients.serve(t, to)
				if got := h.reaches(t, to); got != want {
					t.Errorf("the host reaches %s: %v, want %v", to, got, want)
				}
			}
			if c.more != nil {
				c.more(t, h, clients)
			}
		})
	}
}
