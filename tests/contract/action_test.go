package contract

import (
	"bytes"
	"math/bits"
	"net/netip"
	"slices"
	"testing"

	"weir/filter/icarus"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/long"
)

// The program does with packets of each reason as the policy says, for
// every relevant policy.
func TestActions(t *testing.T) {
	onOneCPU(t)
	udp := func(src, dst string) []byte {
		return packet.Frame(key.Tuple{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Proto: 17, HasPorts: true, SrcPort: 4000, DstPort: 53})
	}
	with := func(frame []byte, at int, b ...byte) []byte { copy(frame[at:], b); return frame }
	const free, to = "198.51.100.9", "203.0.113.1"
	looped, _ := mustNode(t, 1, icarus.Geometry{Size: 64, K: 6, Confirm: 1}).Insert(udp(free, to)[14:], 1500)
	nd := packet.Frame(key.Tuple{Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db9::1"), Proto: 58})
	nd = with(append(with(nd, 21, 255), make([]byte, 24)...), 54, 135, 0)

	// The reason of each, unless the policy or an earlier stage has another.
	frames := map[verdict.Reason][]byte{
		verdict.Clean:       udp(free, to),
		verdict.NotIP:       with(udp(free, to), 12, 0x89, 0x4f),
		verdict.Link:        with(udp(free, to), 12, 0x88, 0xcc),
		verdict.ARP:         with(udp(free, to), 12, 8, 6),
		verdict.ND:          nd,
		verdict.DHCP:        with(udp("192.0.2.1", to), 34, 0, 67, 0, 68),
		verdict.Failsafe:    udp("192.0.2.200", to),
		verdict.Allowed:     udp("192.0.2.65", to),
		verdict.Blocked:     udp("192.0.2.1", to),
		verdict.Truncated:   udp(free, to)[:37],
		verdict.Malformed:   with(udp(free, to), 14, 0x41),
		verdict.Unparsed:    with(slices.Insert(udp("2001:dba::9", "2001:db9::1"), 54, bytes.Repeat([]byte{60, 0, 0, 0, 0, 0, 0, 0}, packet.MaxExtHeaders+1)...), 18, 1, 0, 60),
		verdict.RateLimited: udp("198.51.100.2", to),
		verdict.Heavy:       udp("198.51.100.1", to),
		verdict.Looped:      slices.Concat(udp(free, to)[:14], looped),
		verdict.Overtagged:  slices.Insert(udp(free, to), 12, bytes.Repeat([]byte{0x81, 0, 0, 0}, packet.MaxVLANTags+1)...),
	}
	monitored := map[verdict.Reason]bool{verdict.Blocked: true, verdict.RateLimited: true, verdict.Heavy: true}
	actions := make(map[verdict.Reason]map[verdict.Action]bool)
	for n := range 16 {
		if bits.OnesCount(uint(n))%2 == 1 && !long.Enabled {
			continue // each three settings are together in all ways
		}
		p := verdict.Policy{
			DropNotIP: n&8 != 0, DropMalformed: n&1 != 0, DropLooped: n&2 != 0, Monitor: n&4 != 0,
			FailsafePrefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.200/32")},
		}
		round := newRound(t)
		k := eventful(round, p)
		for reason, frame := range frames {
			if _, err := k.Decide(frame); err != nil { // uses up a rate limit
				t.Fatal(err)
			}
			o, err := k.Decide(frame)
			if err != nil {
				t.Fatal(err)
			}
			want := reason
			if p.Monitor && monitored[reason] {
				want = verdict.WouldBlock
			}
			if o.Reason != want || o.Action != p.Action(want) {
				t.Errorf("%+v: %v packet left as %v, %v; want %v, %v", p, reason, o.Reason, o.Action, want, p.Action(want))
			}
			if actions[want] == nil {
				actions[want] = make(map[verdict.Action]bool)
			}
			actions[want][o.Action] = true
		}
		round.end()
	}
	configurable := []verdict.Reason{verdict.NotIP, verdict.Truncated, verdict.Malformed, verdict.Unparsed, verdict.Looped, verdict.Overtagged}
	for r := range verdict.NumReasons {
		if r == verdict.Policed || r == verdict.Reply || r == verdict.Pattern { // see TestPolicer, TestReplies and TestPatterns
			continue
		}
		want := 1
		if slices.Contains(configurable, r) {
			want = 2
		}
		if len(actions[r]) != want {
			t.Errorf("packets left as %v with %d actions, want %d", r, len(actions[r]), want)
		}
	}
}
