package hub

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"weir/control/api"
	fleetnode "weir/control/fleet/node"
	"weir/control/fleet/wire"
	"weir/control/stage/tracker"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/sketch"
	"weir/tests/long"
)

// counting is a node's tracker as it is by default, on two CPUs.
func counting(t *testing.T) []*sketch.Bank {
	t.Helper()
	spec := tracker.DefaultSpec("src")
	about := spec.Counting().Tracker
	about.Secret = hash.NewSecret(hash.NewSeed())
	var banks []*sketch.Bank
	for range 2 {
		b, err := sketch.NewBank(about, make([]uint64, about.LineWords()), make([]uint64, about.FlowWords()))
		if err != nil {
			t.Fatal(err)
		}
		b.Admit(sketch.Threshold{Units: 100, Share: float64(spec.Threshold.Share)}.Admission(0, 2))
		b.SetSpare(8)
		banks = append(banks, b)
	}
	return banks
}

// heavyHost answers for a node that has counted.
func heavyHost(banks []*sketch.Bank) func(context.Context, string, []byte) (any, error) {
	return func(_ context.Context, what string, question []byte) (any, error) {
		var q wire.HeavyQuestion
		if err := json.Unmarshal(question, &q); err != nil || what != wire.AskHeavy || q.Key != "src" {
			return nil, fmt.Errorf("asked for %s %s", what, question)
		}
		return fleetnode.Heavy(q, time.Second, banks)
	}
}

func source(i uint64) key.Tuple {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], uint32(i*2654435761+1))
	return key.Tuple{Src: netip.AddrFrom4(a), Dst: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Proto: 17, HasPorts: true}
}

// TestTop compares the heavy hitters of twenty nodes with exact counts: precision and
// recall of the sources with at least 0.1 % of all packets, spread evenly over all
// nodes, each at a node of its own, spread over some, and spread over all while half of
// the nodes have more than MaxHeavy larger ones that no other has.
func TestTop(t *testing.T) {
	long.Unraced(t)
	long.Seconds(t)
	const (
		nodes   = 20
		packets = 1_000_000
		sources = 200_000
		many    = 300
		local   = 600
		share   = 0.001
	)
	for name, at := range map[string]func(r *rand.Rand, source uint64) int{
		"spread over all":  func(r *rand.Rand, _ uint64) int { return r.IntN(nodes) },
		"each at one":      func(_ *rand.Rand, source uint64) int { return int(source * 7 % nodes) },
		"spread over some": func(r *rand.Rand, source uint64) int { return (int(source) + r.IntN(1+int(source%8))) % nodes },
		"hidden at half":   func(r *rand.Rand, _ uint64) int { return r.IntN(nodes) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			f.start("")
			r := rand.New(rand.NewPCG(1, 2))
			all := make([][]*sketch.Bank, nodes)
			var names []string
			for i := range all {
				all[i] = counting(t)
				names = append(names, fmt.Sprintf("edge-%d", i))
				f.answerer(names[i], heavyHost(all[i]))
			}
			// Many sources have about 0.1 %, the shares of the others fall as 1/s.
			exact := make([]uint64, sources+many+nodes/2*local)
			for range packets {
				s := uint64(math.Pow(sources, r.Float64())) - 1
				if r.IntN(2) == 0 {
					s = sources + uint64(math.Sqrt(0.04+0.96*r.Float64())*many) // from 0.07 % to 0.35 %
				}
				n := at(r, s)
				if name == "hidden at half" && r.IntN(5) < 2 {
					n = r.IntN(nodes / 2)
					s = uint64(sources + many + n*local + r.IntN(local))
				}
				exact[s]++
				all[n][r.IntN(2)].Count(source(s), 100)
			}
			f.connected(names...)
			top, err := f.hub.Top(t.Context(), nil, api.FleetTopQuestion{Key: "src", Unit: "packets", Share: share})
			if err != nil {
				t.Fatal(err)
			}
			if len(top.Nodes) != nodes || top.Rate != packets {
				t.Fatalf("%+v", top.Nodes)
			}
			count := make(map[string]uint64)
			heavy := 0
			for s, n := range exact {
				count[source(uint64(s)).Src.String()] = n
				if float64(n) >= share*packets {
					heavy++
				}
			}
			right, over := 0, 0.
			for _, flow := range top.Flows {
				n := float64(count[flow.Key])
				if flow.Least > n || flow.Rate < n {
					t.Errorf("%s: %v to %v packets, had %v", flow.Key, flow.Least, flow.Rate, n)
				}
				if n >= share*packets {
					right++
				}
				over += flow.Rate/n - 1
				delete(count, flow.Key)
			}
			for k, n := range count {
				if float64(n) > top.Rest {
					t.Errorf("%s is missing, had %d packets, and no other should have more than %v", k, n, top.Rest)
				}
			}
			precision, recall := float64(right)/float64(len(top.Flows)), float64(right)/float64(heavy)
			t.Logf("%d sources of at least 0.1 %%: precision %.3f, recall %.3f, mean overestimate %.2f %%; no other has more than %.2f %%",
				heavy, precision, recall, 100*over/float64(len(top.Flows)), 100*top.Rest/top.Rate)
			if heavy < 50 || precision < 0.99 || recall < 0.99 {
				t.Errorf("%d sources: precision %v, recall %v", heavy, precision, recall)
			}
		})
	}
}
