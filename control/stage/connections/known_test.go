package connections

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/quantity"
	"weir/filter/key"
	"weir/filter/verdict"
)

// Programs have the configured times, and those of connections that begin no longer ones. Where
// replies do not pass, connections are remembered for others.
func TestPart(t *testing.T) {
	for _, c := range []struct {
		spec    RepliesSpec
		opening time.Duration
		drop    bool
	}{
		{RepliesSpec{Action: verdict.Pass, Connections: 1024, TCPTimeout: quantity.Duration(time.Hour), UDPTimeout: quantity.Duration(time.Minute), Inside: []string{"lan*"}}, opening, false},
		{RepliesSpec{Action: verdict.Pass, Connections: 1024, TCPTimeout: quantity.Duration(opening - 1), UDPTimeout: 2}, opening - 1, false},
		{RepliesSpec{Action: verdict.Drop, Connections: 1024, TCPTimeout: quantity.Duration(opening)}, opening, true},
		{RepliesSpec{Action: verdict.Pass}, 0, true},
	} {
		p, err := c.spec.Part()
		if err != nil {
			t.Fatal(err)
		}
		got := p.(*RepliesPart)
		if got.Replies.Drop != c.drop || got.Replies.Opening != c.opening || got.Replies.Established != time.Duration(c.spec.TCPTimeout) ||
			got.Replies.UDP != time.Duration(c.spec.UDPTimeout) || got.Replies.Ephemeral == 0 || got.Replies.Now == nil || !slices.Equal(got.Inside, c.spec.Inside) {
			t.Errorf("%+v: %+v", c.spec, got)
		}
	}
}

// When a connection was last used follows from when it expires, and from how long one like it lasts.
func TestSent(t *testing.T) {
	spec := func(tcp, udp time.Duration) RepliesSpec {
		return RepliesSpec{TCPTimeout: quantity.Duration(tcp), UDPTimeout: quantity.Duration(udp)}
	}
	const sent = 5 * 24 * time.Hour
	for _, c := range []struct {
		what    string
		spec    RepliesSpec
		proto   uint32
		closing uint8
		lasts   time.Duration
	}{
		{"TCP", spec(3*time.Hour, time.Minute), unix.IPPROTO_TCP, 0, 3 * time.Hour},
		{"closed TCP", spec(3*time.Hour, time.Minute), unix.IPPROTO_TCP, 1, 2 * time.Minute},
		{"closed TCP, with a short timeout", spec(time.Minute, time.Hour), unix.IPPROTO_TCP, 1, time.Minute},
		{"TCP, with a short timeout", spec(time.Minute, time.Hour), unix.IPPROTO_TCP, 0, time.Minute},
		{"UDP", spec(3*time.Hour, time.Minute), unix.IPPROTO_UDP, 0, time.Minute},
		{"UDP, with a long timeout", spec(time.Minute, time.Hour), unix.IPPROTO_UDP, 0, time.Hour},
	} {
		part, err := c.spec.Part()
		if err != nil {
			t.Fatal(err)
		}
		of := part.(*RepliesPart).Replies
		if programs := map[string]time.Duration{"TCP": of.Established, "closed TCP": of.Opening, "UDP": of.UDP}[c.what]; programs != 0 && programs != c.lasts {
			t.Errorf("%s: in programs it lasts %v, want %v", c.what, programs, c.lasts)
		}
		o := &Opened{spec: c.spec}
		if got := o.Sent(Connection{Proto: c.proto}, State{Until: uint64(sent + c.lasts), Closing: c.closing}); got != sent {
			t.Errorf("%s: sent at %v, want %v", c.what, got, sent)
		}
	}
}

// words returns an address as the programs' maps have it: one of IPv4 in the first word.
func words(a netip.Addr) (w [4]uint32) {
	b := append(a.AsSlice(), make([]byte, 12)...)
	for i := range w {
		w[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return w
}

// What comes in has the remote side as its source.
func TestIncoming(t *testing.T) {
	for _, c := range []struct{ local, remote string }{
		{"192.0.2.1", "198.51.100.9"}, {"2001:db8::1", "2001:db8:7::9"}, {"::1", "::1"}, {"2001:db8::", "2001:db8::1"}, {"2001:db8::1", "2001:db8::"},
	} {
		local, remote := netip.MustParseAddr(c.local), netip.MustParseAddr(c.remote)
		k := Connection{
			Local: words(local), Remote: words(remote), Proto: unix.IPPROTO_UDP,
			Ports: binary.NativeEndian.Uint32([]byte{0x9c, 0x40, 0, 53}), // 40000 and 53
		}
		want := key.Tuple{Src: remote, Dst: local, Proto: unix.IPPROTO_UDP, HasPorts: true, SrcPort: 53, DstPort: 40000}
		if got := new(Opened).Incoming(k); got != want {
			t.Errorf("%s from %s: %v, want %v", c.local, c.remote, got, want)
		}
	}
}
