// Package kernels loads every variant of the program and uses it in every way
// of attaching. It passes on any kernel that weir supports; `make test-kernels`
// runs it, and others of the tests, on several of them.
package kernels

import (
	"fmt"
	"strconv"
	"testing"

	"weir/control/engine"
	"weir/control/stage/sampler"
	"weir/filter/fpr"
	"weir/filter/membership"
	"weir/filter/quotient"
	"weir/loader"
	"weir/tests/lab"
	"weir/tests/long"
)

// kinds of shapes: each has a loop of its own in the program.
var kinds = []struct {
	name   string
	shapes func(*loader.KeySet) (*[membership.MaxShapes]loader.Shape, *uint32, *uint32)
	flow   bool
}{
	{"v4", func(k *loader.KeySet) (*[membership.MaxShapes]loader.Shape, *uint32, *uint32) {
		return &k.V4, &k.N_v4, &k.GatesV4
	}, false},
	{"v4-flow", func(k *loader.KeySet) (*[membership.MaxShapes]loader.Shape, *uint32, *uint32) {
		return &k.V4Flow, &k.N_v4Flow, &k.GatesV4
	}, true},
	{"v6", func(k *loader.KeySet) (*[membership.MaxShapes]loader.Shape, *uint32, *uint32) {
		return &k.V6, &k.N_v6, &k.GatesV6
	}, false},
	{"v6-flow", func(k *loader.KeySet) (*[membership.MaxShapes]loader.Shape, *uint32, *uint32) {
		return &k.V6Flow, &k.N_v6Flow, &k.GatesV6
	}, true},
}

// keySet has n shapes of one kind, or of each kind if it is empty, with gates
// in turn.
func keySet(mode membership.Mode, kind string, n int) loader.KeySet {
	k := loader.KeySet{Lines: 64, First: fpr.ExactFirst, Buckets: 64, Marks6Lines: 64}
	if mode == membership.Approximate {
		k.Buckets, k.First, k.Rest = 0, fpr.ApproxFirst, fpr.MaxFurther*fpr.MaxRest
	}
	if mode == membership.Exact && (kind == "" || kind == "v4") {
		addPrefixes(&k, n)
	}
	gates := []membership.Gate{membership.GateSrc, membership.GateDst, membership.GateAlways}
	for _, kd := range kinds {
		if kind != "" && kind != kd.name || kd.name == "v4" && mode == membership.Exact {
			continue
		}
		shapes, count, all := kd.shapes(&k)
		for i := range n {
			s := &shapes[i]
			// All different, so that the verifier cannot take one for another.
			s.Head, s.Gate = uint32(i)<<8, uint32(gates[i%len(gates)])
			s.SrcMask[0] = ^uint32(0) >> i
			if kd.flow {
				s.PortsMask, s.ProtoMask = 0xffff*uint32(i%2), 0xff<<24
			}
			*all |= s.Gate
		}
		*count = uint32(n)
	}
	return k
}

// addPrefixes adds n lengths of IPv4 prefixes, in the quotient table with the
// narrowest lanes, of which the program has most to do, and a directory of both sides.
func addPrefixes(k *loader.KeySet, n int) {
	l := quotient.Layout{KeyBits: 31, LaneBits: 12, Lines: 1 << 20, Buckets: 64, Front: 64} // 64 MiB
	k.Quotient = engine.Quotient(l, quotient.NewSecret())
	k.N_prefixes, k.PrefixShift = uint32(n), 1
	k.Directory = loader.Directory{Shift: 20, Parts: uint32(64 - n), Src: 1 << 12, Dst: 1 << 12}
	for i := range n {
		k.Prefixes[i].SrcMask, k.Prefixes[i].Tail = ^uint32(0)>>i, 1<<i
	}
}

func failsafe() loader.Failsafe {
	var f loader.Failsafe
	f.N_ports, f.N_v4, f.N_v6 = uint32(len(f.Ports)), uint32(len(f.V4)), uint32(len(f.V6))
	for i := range f.Ports {
		f.Ports[i].Port, f.Ports[i].Proto = uint16(i), 6
		// A mask of zero would match every packet and make the rest dead code.
		f.V4[i].Addr[0], f.V4[i].Mask[0] = uint32(i), ^uint32(0)
		f.V6[i].Addr[0], f.V6[i].Mask[0] = uint32(i), ^uint32(0)
	}
	return f
}

// maxVerified is the maximum cost of a program, in instructions processed by
// the verifier. Its limit is a million; the rest is a margin for untested
// kernels.
const maxVerified = 400_000

// The verifier's cost is an attribute of each test. Without WEIR_LONG=1, only variants with
// all shapes are loaded.
func TestVariants(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	type shapes struct {
		name, kind string
		n          int
	}
	all := []shapes{{"each-kind-x1", "", 1}, {"each-kind-x8", "", 8}, {"each-kind-x32", "", membership.MaxShapes}}
	for _, k := range kinds {
		all = append(all, shapes{k.name + "-x32", k.name, membership.MaxShapes})
	}
	t.Run("empty", func(t *testing.T) {
		t.Parallel()
		variant(t, loader.Config{}, nil)
	})
	for _, mode := range []membership.Mode{membership.Exact, membership.Approximate} {
		for _, sets := range []string{"block", "both"} {
			for _, s := range all {
				t.Run(fmt.Sprintf("%v/%s/%s", mode, sets, s.name), func(t *testing.T) {
					if s.kind != "" || s.n < membership.MaxShapes {
						long.Only(t, "one of many variants")
					}
					t.Parallel()
					c := loader.Config{Failsafe: failsafe(), Lists: 3, Block: keySet(mode, s.kind, s.n)}
					if sets == "both" {
						c.Allow = keySet(mode, s.kind, s.n)
						c.Allow.Quotient.Front, c.Allow.Quotient.FrontScale = 0, 0 // it is asked too rarely
						c.Allow.Directory = loader.Directory{}
					}
					variant(t, c, nil)
				})
			}
		}
		for _, entry := range []struct {
			name     string
			out      bool
			ethernet bool
		}{{"tc-in", false, true}, {"tc-out", true, true}, {"tc-in-no-ethernet", false, false}} {
			t.Run(fmt.Sprintf("%v/both/each-kind-x32/%s", mode, entry.name), func(t *testing.T) {
				t.Parallel()
				sets := keySet(mode, "", membership.MaxShapes)
				c := loader.Config{Failsafe: failsafe(), Lists: 3, Block: sets, Allow: sets, TC: true, Out: entry.out}
				c.Allow.Quotient.Front, c.Allow.Quotient.FrontScale = 0, 0
				c.Allow.Directory = loader.Directory{}
				variant(t, c, func(s *loader.Stats) { s.UseTC(entry.ethernet) })
			})
		}
	}
}

// variant loads a configuration under the policy with most to do and the one with
// least. prepare, if not nil, selects the program.
func variant(t *testing.T, c loader.Config, prepare func(*loader.Stats)) {
	most := 0
	part := new(sampler.Part)
	maps, err := part.Maps(c.Out)
	if err != nil {
		t.Fatal(err)
	}
	c.Parts, c.Maps = append(c.Parts, part), maps
	for _, drops := range []bool{false, true} {
		c.Monitor, c.DropMalformed, c.Inner = !drops, drops, drops
		n, err := load(c, prepare)
		if err != nil {
			t.Fatalf("drops %t: %v", drops, err)
		}
		most = max(most, n)
	}
	t.Attr("instructions", strconv.Itoa(most))
	if most > maxVerified {
		t.Errorf("the verifier walks %d instructions: too near to its limit of a million", most)
	}
}

func load(c loader.Config, prepare func(*loader.Stats)) (instructions int, err error) {
	g, err := loader.NewGeneration(c)
	if err != nil {
		return 0, err
	}
	defer g.Close()
	stats, err := loader.NewStats(c.Lists)
	if err != nil {
		return 0, err
	}
	defer stats.Close()
	if prepare != nil {
		prepare(stats)
	}
	p, err := g.Load(stats)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	return p.VerifiedInstructions()
}
