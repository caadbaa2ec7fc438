package contract

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/replay"
	"weir/filter/key"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/long"
)

// packetsVariable has the number of packets that TestOracleOfTags sends through each program.
const packetsVariable = "WEIR_PACKETS"

// layered is a frame, and the IP headers that it was built of, from the outermost on.
type layered struct {
	frame   []byte
	headers []layer
	opaque  bool // the last header carries GRE with something else than IP
}

type layer struct {
	src, dst netip.Addr
	tags     int
}

// String returns the addresses, and how many tags are before them.
func (l layer) String() string { return fmt.Sprintf("%v > %v behind %d tags", l.src, l.dst, l.tags) }

// guests are the addresses that frames have, and by which lists each is known.
type guests struct {
	v4, v6              []netip.Addr
	from, to, permitted map[netip.Addr]bool
}

func newGuests(r random) *guests {
	g := &guests{from: make(map[netip.Addr]bool), to: make(map[netip.Addr]bool), permitted: make(map[netip.Addr]bool)}
	for i := range 256 {
		g.v4 = append(g.v4, netip.AddrFrom4([4]byte{byte(20 + r.IntN(100)), byte(r.IntN(256)), byte(r.IntN(256)), byte(i)}))
		g.v6 = append(g.v6, netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, byte(r.IntN(256)), byte(r.IntN(256)), 8: byte(r.IntN(256)), 15: byte(i)}))
	}
	for _, of := range [][]netip.Addr{g.v4, g.v6} {
		for _, a := range of {
			g.from[a], g.to[a], g.permitted[a] = r.IntN(12) == 0, r.IntN(12) == 0, r.IntN(16) == 0
		}
	}
	return g
}

// lists returns the lists that have the addresses.
func (g *guests) lists() []engine.List {
	set := func(is map[netip.Addr]bool, at func(netip.Prefix) key.Key) *list.Set {
		var all []key.Key
		for a, in := range is {
			if in {
				all = append(all, at(netip.PrefixFrom(a, a.BitLen())))
			}
		}
		return list.SetOf(all...)
	}
	return []engine.List{
		{Name: "from", Contents: set(g.from, key.Source)},
		{Name: "to", Direction: engine.Destination, Contents: set(g.to, key.Destination)},
		{Name: "permitted", Allow: true, Contents: set(g.permitted, key.Source)},
	}
}

// judge returns the verdict on a frame by docs/matching.md.
func (g *guests) judge(l layered, c verdict.Policy) (verdict.Action, verdict.Reason) {
	const tags, deep = 8, 4
	for i, h := range l.headers {
		switch {
		case h.tags > tags:
			return verdict.Drop, verdict.Overtagged
		case i > deep && c.DropMalformed:
			return verdict.Drop, verdict.Unparsed
		case i > deep:
			return verdict.Pass, verdict.Unparsed
		case g.permitted[h.src] && (g.from[h.src] || g.to[h.dst]):
			return verdict.Pass, verdict.Allowed
		case g.permitted[h.src]:
			return verdict.Pass, verdict.Clean
		case g.from[h.src] || g.to[h.dst]:
			return verdict.Drop, verdict.Blocked
		}
	}
	return verdict.Pass, verdict.Clean
}

// layered builds a frame: headers in GRE, with Ethernet headers in between or not, and VLAN tags
// before each.
func (r random) layered(g *guests) (l layered) {
	count := func() int {
		if r.IntN(3) == 0 {
			return r.IntN(10)
		}
		return 0
	}
	tag := func(b []byte, etherType uint16, n int) []byte {
		for range n {
			vid := uint16(0)
			if r.IntN(4) == 0 {
				vid = uint16(r.IntN(1 << 16))
			}
			b = binary.BigEndian.AppendUint16(b, uint16(r.pick(unix.ETH_P_8021Q, unix.ETH_P_8021AD)))
			b = binary.BigEndian.AppendUint16(b, vid)
		}
		return binary.BigEndian.AppendUint16(b, etherType)
	}
	mac := func() []byte { return []byte{2, 0, 0, 0, 0, byte(r.IntN(256)), 2, 0, 0, 0, 1, byte(r.IntN(256))} }
	depth := r.pick(0, 1, 1, 1, 2, 2, 3, 4, 5)
	l.opaque = r.IntN(20) == 0
	// From the innermost on.
	payload, proto := []byte(nil), uint8(0)
	switch v := r.IntN(3); {
	case l.opaque:
		proto, payload = unix.IPPROTO_GRE, slices.Concat([]byte{0, 0, 0x88, 0xb5}, make([]byte, 40))
	case v == 0:
		proto, payload = unix.IPPROTO_TCP, make([]byte, 20)
		payload[12] = 5 << 4
	case v == 1:
		proto, payload = unix.IPPROTO_UDP, make([]byte, 8+r.IntN(20))
		binary.BigEndian.PutUint16(payload[4:], uint16(len(payload)))
	default:
		proto, payload = 253, make([]byte, r.IntN(20))
	}
	if proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_UDP {
		binary.BigEndian.PutUint16(payload, uint16(5000+r.IntN(1000)))
		binary.BigEndian.PutUint16(payload[2:], uint16(6000+r.IntN(1000)))
	}
	for i := depth; i >= 0; i-- {
		h := layer{tags: count()}
		etherType, ip := uint16(unix.ETH_P_IP), []byte(nil)
		if r.IntN(2) == 0 {
			h.src, h.dst = g.v4[r.IntN(len(g.v4))], g.v4[r.IntN(len(g.v4))]
			words := r.pick(5, 5, 5, 6, 15)
			ip = make([]byte, 4*words)
			ip[0], ip[8], ip[9] = 4<<4|byte(words), 64, proto
			for i := 20; i < len(ip); i++ {
				ip[i] = 1 // no operation
			}
			copy(ip[12:], h.src.AsSlice())
			copy(ip[16:], h.dst.AsSlice())
			binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(payload)))
		} else {
			etherType = unix.ETH_P_IPV6
			h.src, h.dst = g.v6[r.IntN(len(g.v6))], g.v6[r.IntN(len(g.v6))]
			ip = make([]byte, 40)
			ip[0], ip[6], ip[7] = 6<<4, proto, 64
			for range r.pick(0, 0, 0, 1, 2) { // options for the destination
				ip = append(ip, ip[6], 0, 1, 4, 0, 0, 0, 0)
				if len(ip) > 48 { // behind the first, which names it
					ip[40], ip[48] = unix.IPPROTO_DSTOPTS, proto
				}
				ip[6] = unix.IPPROTO_DSTOPTS
			}
			copy(ip[8:], h.src.AsSlice())
			copy(ip[24:], h.dst.AsSlice())
			binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40+len(payload)))
		}
		l.headers = append([]layer{h}, l.headers...)
		packet := slices.Concat(ip, payload)
		if i == 0 {
			l.frame = append(tag(mac(), etherType, h.tags), packet...)
			break
		}
		flags := byte(r.pick(0, 0, 0x20, 0x80, 0xb0, 0x10))
		gre := []byte{flags, 0}
		var options []byte
		for _, bit := range []byte{0x80, 0x20, 0x10} {
			if flags&bit != 0 {
				options = append(options, 0, 0, 0, byte(r.IntN(256)))
			}
		}
		if r.IntN(2) == 0 { // an Ethernet frame
			gre = slices.Concat(gre, []byte{0x65, 0x58}, options, tag(mac(), etherType, h.tags))
		} else { // GRE has the first EtherType
			types := tag(nil, etherType, h.tags)
			gre = slices.Concat(gre, types[:2], options, types[2:])
		}
		payload, proto = slices.Concat(gre, packet), unix.IPPROTO_GRE
	}
	return l
}

// The programs for XDP and for TC, there with Ethernet headers and without, decide on tags before
// and behind GRE as docs/matching.md says, by frames whose headers are known since they were built.
// WEIR_PACKETS is how many there are.
func TestOracleOfTags(t *testing.T) {
	lab.Root(t)
	packets := long.Or(20_000, 100_000)
	if text := os.Getenv(packetsVariable); text != "" {
		var err error
		if packets, err = strconv.Atoi(text); err != nil || packets < 1 {
			t.Fatalf("%s is %q, want a number from 1", packetsVariable, text)
		}
	}
	r := newRandom(t)
	const batch = 20_000
	type tally struct {
		packets  int
		verdicts map[verdict.Reason]int
	}
	began, seen, deepest := time.Now(), make(map[string]*tally), make(map[int]int)
	for done, round := 0, 0; done < packets; round++ {
		g := newGuests(r)
		c := engine.Config{Policy: verdict.Policy{Inner: true, DropMalformed: round%2 == 0}}
		inRound := newRound(t)
		_, xdp := engines(inRound, g.lists(), c)
		programs := map[string]*replay.Kernel{"XDP": xdp}
		for _, e := range tcEntries(inRound, g.lists(), c, "in", "in without Ethernet") {
			programs["TC, "+e.name] = e.Kernel
		}
		if len(programs) != 3 {
			t.Fatalf("%d programs, want 3", len(programs))
		}
		for range min(batch, packets-done) {
			l := r.layered(g)
			action, reason := g.judge(l, c.Policy)
			deepest[len(l.headers)]++
			for name, k := range programs {
				got, err := k.Decide(l.frame)
				if err != nil || got.Action != action || got.Reason != reason {
					t.Fatalf("%s: %+v, %v, want %v (%v), headers %v: % x", name, got, err, action, reason, l.headers, l.frame)
				}
				if seen[name] == nil {
					seen[name] = &tally{verdicts: make(map[verdict.Reason]int)}
				}
				seen[name].packets++
				seen[name].verdicts[reason]++
			}
			done++
		}
		inRound.end()
	}
	total := 0
	for name, of := range seen {
		total += of.packets
		t.Logf("%s: %d packets, %v", name, of.packets, of.verdicts)
		for _, reason := range []verdict.Reason{verdict.Clean, verdict.Blocked, verdict.Allowed, verdict.Overtagged, verdict.Unparsed} {
			if of.verdicts[reason] == 0 {
				t.Errorf("%s: no packet was %v: the test is too narrow", name, reason)
			}
		}
	}
	took := time.Since(began)
	t.Logf("%d packets in %v, %.0f a second; by number of headers %v", total, took.Round(time.Second), float64(total)/took.Seconds(), deepest)
}
