package verdict_test

import (
	"testing"

	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/cases"
)

func TestDecide(t *testing.T) {
	program := func(p verdict.Policy, mode membership.Mode) *verdict.Program {
		return &verdict.Program{
			Policy: p,
			Block:  verdict.SetOf(t, mode, cases.Blocked...),
			Allow:  verdict.SetOf(t, mode, cases.Allowed),
		}
	}
	for _, c := range cases.OfVerdicts() {
		for _, mode := range []membership.Mode{membership.Exact, membership.Approximate} {
			for _, flags := range []struct{ malformed, monitor bool }{{}, {malformed: true}, {monitor: true}, {true, true}} {
				p := cases.Policy
				p.DropMalformed, p.Monitor = flags.malformed, flags.monitor
				want := verdict.Outcome{Reason: c.Reason, List: c.List}
				switch c.Reason {
				case verdict.Blocked:
					want.Action = verdict.Drop
					if p.Monitor {
						want.Action, want.Reason = verdict.Pass, verdict.WouldBlock
					}
				case verdict.Overtagged:
					if !p.Monitor {
						want.Action = verdict.Drop
					}
				case verdict.Truncated, verdict.Malformed, verdict.Unparsed:
					if p.DropMalformed && !p.Monitor {
						want.Action = verdict.Drop
					}
				}
				if mode == membership.Approximate {
					want.List = 0
				}
				if got := program(p, mode).Decide(c.Frame); got != want {
					t.Errorf("%s, %v, %+v: %+v, want %+v", c.Name, mode, flags, got, want)
				}
				if got := program(p, mode).TraceFrame(c.Frame, nil); got.Outcome != want || len(got.Depends) > 0 {
					t.Errorf("%s, %v, %+v: traced %+v, depends on %v, want %+v", c.Name, mode, flags, got.Outcome, got.Depends, want)
				}
			}
		}
	}
}

// A host that serves or relays DHCP hears clients and relays, listed or not.
func TestDHCPServer(t *testing.T) {
	for _, c := range cases.OfDHCP() {
		pkt, _ := packet.Parse(c.Frame)
		for server, want := range map[bool]bool{false: c.Client, true: c.Server} {
			p := &verdict.Program{Policy: verdict.Policy{DHCPServer: server}}
			if got := p.Decide(c.Frame).Reason == verdict.DHCP; got != want {
				t.Errorf("%v, server %t: %t", pkt.Tuple, server, got)
			}
			if got := p.Trace(pkt.Tuple.Key(), nil, nil).Reason == verdict.DHCP; got != want {
				t.Errorf("%v, server %t: traced %t", pkt.Tuple, server, got)
			}
		}
	}
}
