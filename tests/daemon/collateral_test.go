package daemon

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/long"
	"weir/tests/seed"
	"weir/tests/wait"
)

// conversed returns how the host has conversed with the addresses of a list.
func (h *host) conversed(list string) map[string]string {
	h.t.Helper()
	c, err := h.api.Collateral(h.t.Context(), list)
	if err != nil || !c.Recorded || len(c.Lists) != 1 || c.Lists[0].List != list || c.Lists[0].Addresses != len(c.Lists[0].Latest) {
		h.t.Fatalf("%+v, %v", c, err)
	}
	all := make(map[string]string)
	for _, p := range c.Lists[0].Latest {
		if p.Last.Before(p.First) || time.Since(p.First) > time.Hour || time.Until(p.Last) > 0 {
			h.t.Errorf("%+v", p)
		}
		all[p.Addr.String()+" "+p.Direction] = strings.Join(p.How, " ")
	}
	return all
}

// tcp returns a segment from an address to the host.
func (h *host) tcp(from netip.Addr, to uint16, flags byte, seq, ack uint32) []byte {
	f := packet.Frame(key.Tuple{Src: from, Dst: netip.MustParseAddr(hostAddress), Proto: 6, HasPorts: true, SrcPort: 40001, DstPort: to})
	tcp := f[len(f)-20:]
	binary.BigEndian.PutUint32(tcp[4:], seq)
	binary.BigEndian.PutUint32(tcp[8:], ack)
	tcp[12], tcp[13] = 5<<4, flags
	return h.Numbered(f, 0)
}

// What a host has conversed with is known over everything that happens to the daemon, keeps a
// trial from its end, and is said of the lists that have the address now.
func TestCollateral(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	h := newHost(t)
	h.addresses()
	for _, a := range []string{listedAddress, unlistedAddress, listed6} {
		echo(t, h.A, a, "7")
	}
	for _, a := range []string{hostAddress, host6} {
		echo(t, h.B, a, "7")
	}
	configure := func(collateral, enforce, more string) {
		h.configure(h.B.Iface, `collateral: %s
lists:
  bad: {anti_lockout: false, enforce: %s, entries: [%s/32, "%s", 203.0.113.0/24%s]}
  c2: {anti_lockout: false, enforce: %s, direction: out, entries: [%s]}
  none: {anti_lockout: false, entries: [192.0.2.0/24]}
`, collateral, enforce, listedAddress, listed6, more, enforce, listedAddress)
	}
	reload := func() {
		t.Helper()
		if _, err := h.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when string, list string, want map[string]string) {
		t.Helper()
		if got := h.conversed(list); !maps.Equal(got, want) {
			t.Errorf("%s: list %s: %v, want %v", when, list, got, want)
		}
	}
	configure("2048", "false", "")
	d := h.start(releases[0])
	expect("at first", "bad", map[string]string{})

	spoofed := h.A.Sender(t)
	for _, flags := range []byte{0x02, 0x12, 0x10, 0x18, 0x11, 0x04} {
		for _, port := range []uint16{7, 9} {
			if err := spoofed.Send(h.tcp(netip.MustParseAddr("203.0.113.9"), port, flags, 1, 2)); err != nil {
				t.Fatal(err)
			}
		}
	}
	opens := func(network, from, to string) net.Conn {
		t.Helper()
		end := h.B
		if from != "" {
			end = h.A
		}
		c, err := dial(t, end, network, from, to, wait.Patience)
		if err != nil || !answers(c, wait.Patience) {
			t.Fatalf("%s %s: no answer: %v", network, to, err)
		}
		return c
	}
	opens("udp", listedAddress, hostAddress+":7") // the host answers, and opens nothing
	expect("spoofed segments, and a datagram to the host", "bad", map[string]string{})
	opens("tcp", "", listedAddress+":7")
	opens("tcp", unlistedAddress, hostAddress+":7")
	opens("tcp", listed6, "["+host6+"]:7")
	want := map[string]string{listedAddress + " in": "opened-tcp", listed6 + " in": "accepted-tcp"}
	expect("a connection of each side", "bad", want)
	expect("a connection of the host", "c2", map[string]string{listedAddress + " out": "opened-tcp"})
	opens("tcp", listedAddress, hostAddress+":7")
	opens("udp", "", listedAddress+":7")
	want[listedAddress+" in"] = "opened-tcp opened-udp accepted-tcp"
	expect("all of them", "bad", want)
	expect("both directions", "c2", map[string]string{listedAddress + " out": "opened-tcp accepted-tcp"})
	expect("a list without them", "none", map[string]string{})

	if out := h.succeeds("", "collateral", "bad", "--socket", h.path("weir.sock")); !strings.Contains(out, listed6) || strings.Contains(out, "203.0.113.9") {
		t.Errorf("weir collateral bad:\n%s", out)
	}
	if l := h.list("bad").Collateral; l == nil || l.Addresses != 2 || l.Day != 2 || len(l.Latest) != 2 {
		t.Errorf("the list has the collateral %+v", l)
	}
	if out := h.succeeds("", "lists", "--socket", h.path("weir.sock")); !strings.Contains(out, "bad: this host has conversed with 2 addresses that it would drop, 2 of them in 24h: ") {
		t.Errorf("weir lists:\n%s", out)
	}
	if out := h.succeeds("", "lists", "--worth", "--json", "--socket", h.path("weir.sock")); !strings.Contains(out, `"collateral_addresses": 2`) {
		t.Errorf("weir lists --worth:\n%s", out)
	}

	// The trial does not end over them, and ends over others.
	refused := func(when string) {
		t.Helper()
		if e, err := h.api.Enforce(t.Context(), "bad", api.EnforceChange{}); err == nil || !strings.Contains(err.Error(), "conversed with addresses that it would drop: ") || !strings.Contains(err.Error(), listed6) {
			t.Errorf("%s: %+v, %v", when, e, err)
		}
	}
	refused("with partners")
	d.kill()
	opens("tcp", "", listedAddress+":7")
	d = h.start(releases[1])
	expect("after a crash", "bad", want)
	refused("after a crash")
	configure("4096", "false", ", 192.0.2.1")
	reload()
	expect("with more room", "bad", want)
	d.stop()
	h.start(releases[0])
	expect("after a restart", "bad", want)
	h.succeeds("", "allow", listed6, "--socket", h.path("weir.sock"))
	delete(want, listed6+" in")
	expect("an address that is allowed", "bad", want)
	h.succeeds("", "unallow", listed6, "--socket", h.path("weir.sock"))
	if _, err := h.api.Enforce(t.Context(), "bad", api.EnforceChange{Force: true}); err != nil {
		t.Fatal(err)
	}
	want[listed6+" in"] = "accepted-tcp"
	expect("an enforced list", "bad", want)
	if _, err := dial(t, h.B, "tcp", "", listedAddress+":7", soon); err == nil {
		t.Error("a listed address answers, although replies do not pass")
	}
	expect("an enforced list, whose addresses do not answer any more", "bad", want)
	h.configure(h.B.Iface, "lists: {bad: {anti_lockout: false, entries: [%s]}}\n", listedAddress)
	reload()
	if c, err := h.api.Collateral(t.Context(), ""); err != nil || c.Recorded || len(c.Lists) > 0 || h.list("bad").Collateral != nil {
		t.Errorf("without the key: %+v, %v", c, err)
	}
	if pins, err := filepath.Glob(string(h.pins) + "/partners*"); err != nil || len(pins) > 0 {
		t.Errorf("without the key, %v are pinned: %v", pins, err)
	}
}

// A random load of conversations against what is known of each: all that are recorded took place,
// and nearly all that took place are recorded. A flood of spoofed sources adds none.
func TestCollateralOracle(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	h := newHost(t)
	h.addresses()
	r := seed.New(t)
	conversations, flood := long.Or(2_000, 20_000), long.Or(100_000, 1_000_000)
	for _, args := range [][]string{
		// The peer has all addresses of a network, and the host answers spoofed ones by the same way.
		{"-n", h.A.Netns, "route", "add", "local", "203.0.0.0/16", "dev", "lo"},
		{"-n", h.A.Netns, "link", "set", "lo", "up"},
		{"-n", h.B.Netns, "route", "add", "203.0.0.0/16", "via", unlistedAddress},
		{"-n", h.B.Netns, "route", "add", "101.0.0.0/8", "via", unlistedAddress},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	echo(t, h.A, "0.0.0.0", "7")
	echo(t, h.B, hostAddress, "7")

	const (
		opens    = iota // TCP of the host
		accepts         // TCP of the peer
		asks            // UDP of the host
		isAsked         // UDP of the peer
		halfOpen        // a SYN of the peer
		spoofed         // segments out of nothing
		refused         // TCP of the host to a port that is closed
		kinds
	)
	all := r.Perm(1 << 16)[:conversations]
	var listed []string
	want := make(map[string]string)
	kind := func(i int) int { return (i*7 + i/10) % kinds }
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, byte(all[i] >> 8), byte(all[i])}) }
	for i := range all {
		if i%10 != 0 {
			continue
		}
		listed = append(listed, address(i).String())
		if how := map[int]string{opens: "opened-tcp", accepts: "accepted-tcp", asks: "opened-udp"}[kind(i)]; how != "" {
			want[address(i).String()+" in"] = how
		}
	}
	h.write("listed.txt", []byte(strings.Join(listed, "\n")+"\n"))
	h.configure(h.B.Iface, `collateral: {sources: 65536}
lists:
  bad: {anti_lockout: false, enforce: false, sources: [{file: %s}]}
  wide: {anti_lockout: false, enforce: false, entries: [101.0.0.0/8]}
`, h.path("listed.txt"))
	h.start(releases[0])
	raw := h.A.Sender(t)
	send := func(frame []byte) {
		if err := raw.Send(frame); err != nil {
			t.Fatal(err)
		}
	}
	talk := func(network, from, to string) {
		t.Helper()
		end := h.B
		d := net.Dialer{Timeout: wait.Patience}
		if from != "" {
			end = h.A
			if d.LocalAddr = net.Addr(&net.TCPAddr{IP: net.ParseIP(from)}); network == "udp" {
				d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(from)}
			}
		}
		if err := end.Do(func() error {
			c, err := d.Dial(network, to)
			if err != nil {
				return err
			}
			defer c.Close()
			if !answers(c, wait.Patience) {
				return io.ErrUnexpectedEOF
			}
			return nil
		}); err != nil {
			t.Fatalf("%s %s %s: %v", network, from, to, err)
		}
	}
	// ask has the host ask a server of the peer at an address of its own.
	ask := func(at string) {
		t.Helper()
		var server net.PacketConn
		var client net.Conn
		err := h.A.Do(func() (err error) {
			server, err = net.ListenPacket("udp", at)
			return err
		})
		if err == nil {
			defer server.Close()
			err = h.B.Do(func() (err error) {
				client, err = net.Dial("udp", at)
				return err
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		b := make([]byte, 4)
		server.SetDeadline(wait.Deadline())
		client.SetDeadline(wait.Deadline())
		_, err = client.Write(b)
		if err == nil {
			var from net.Addr
			if _, from, err = server.ReadFrom(b); err == nil {
				_, err = server.WriteTo(b, from)
			}
		}
		if err == nil {
			_, err = client.Read(b)
		}
		if err != nil {
			t.Fatalf("udp %s: %v", at, err)
		}
	}
	for i := range all {
		a := address(i)
		switch kind(i) {
		case opens:
			talk("tcp", "", a.String()+":7")
		case accepts:
			talk("tcp", a.String(), hostAddress+":7")
		case asks:
			ask(a.String() + ":7007")
		case isAsked:
			talk("udp", a.String(), hostAddress+":7")
		case halfOpen:
			send(h.tcp(a, 7, 0x02, r.Uint32(), 0))
		case spoofed:
			for _, flags := range []byte{0x02, 0x12, 0x10, 0x18, 0x11, 0x14} {
				send(h.tcp(a, 7, flags, r.Uint32(), r.Uint32()))
			}
		case refused:
			if c, err := dial(t, h.B, "tcp", "", a.String()+":9", wait.Patience); err == nil {
				c.Close()
				t.Fatal("a closed port answers")
			}
		}
	}
	check := func(when string) {
		t.Helper()
		got, found := h.conversed("bad"), 0
		for a, how := range got {
			if want[a] != how {
				t.Errorf("%s: %s is recorded as %q, it was %q", when, a, how, want[a])
			}
			found++
		}
		t.Logf("%s: %d of %d conversations are recorded", when, found, len(want))
		if float64(found) < 0.99*float64(len(want)) {
			var missing []string
			for _, a := range slices.Sorted(maps.Keys(want)) {
				if got[a] == "" {
					missing = append(missing, fmt.Sprint(a, " ", want[a]))
				}
			}
			t.Errorf("%s: not recorded: %v", when, missing[:min(10, len(missing))])
		}
	}
	check("conversations")
	began := time.Now()
	for i := range flood {
		a := netip.AddrFrom4([4]byte{101, byte(i >> 16), byte(i >> 8), byte(i)})
		send(h.tcp(a, 7, []byte{0x02, 0x10, 0x02, 0x12, 0x18}[i%5], r.Uint32(), r.Uint32()))
	}
	t.Logf("%d spoofed sources in %v", flood, time.Since(began))
	if got := h.conversed("wide"); len(got) > 0 {
		t.Errorf("spoofed sources are recorded: %v", got)
	}
	if n := h.list("wide").Packets; n == nil || *n < uint64(flood)*9/10 {
		t.Errorf("%v of %d packets of the flood were matched: the test is too narrow", n, flood)
	}
	check("after the flood")
}
