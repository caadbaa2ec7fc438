package contract

import (
	"fmt"
	"testing"

	"weir/bpf"
	"weir/filter/fpr"
	"weir/filter/membership"
	"weir/loader"
	"weir/tests/lab"
)

// maxVerified is what the largest program may cost the verifier, in
// instructions that it walks. Its limit is a million; the rest is left to other
// kernels, whose verifiers prune other paths.
const maxVerified = 500_000

// fullSet has as many shapes of each kind as fit, with gates in turn, so that
// nothing of the program is dead code.
func fullSet(n int, mode membership.Mode, gates []membership.Gate) loader.KeySet {
	k := loader.KeySet{Lines: 64, First: fpr.ExactFirst, Buckets: 64, Marks6Lines: 64}
	if mode == membership.Approximate {
		k.Buckets, k.First, k.Rest = 0, fpr.ApproxFirst, fpr.MaxRest
	}
	for _, kind := range []struct {
		shapes *[membership.MaxShapes]loader.Shape
		n      *uint32
		gates  *uint32
		flow   bool
	}{
		{&k.V4, &k.N_v4, &k.GatesV4, false}, {&k.V4Flow, &k.N_v4Flow, &k.GatesV4, true},
		{&k.V6, &k.N_v6, &k.GatesV6, false}, {&k.V6Flow, &k.N_v6Flow, &k.GatesV6, true},
	} {
		for i := range n {
			s := &kind.shapes[i]
			// All different, so that the compiler's constants fold nowhere.
			s.Head, s.Gate = uint32(i)<<8, uint32(gates[i%len(gates)])
			s.SrcMask[0] = ^uint32(0) >> i
			if kind.flow {
				s.PortsMask, s.ProtoMask = 0xffff*uint32(i%2), 0xff<<24
			}
			*kind.gates |= s.Gate
		}
		*kind.n = uint32(n)
	}
	return k
}

func fullFailsafe() loader.Failsafe {
	var f loader.Failsafe
	f.N_ports, f.N_v4, f.N_v6 = uint32(len(f.Ports)), uint32(len(f.V4)), uint32(len(f.V6))
	for i := range f.Ports {
		f.Ports[i].Port, f.Ports[i].Proto = uint16(i), 6
	}
	for i := range f.V4 {
		// A mask of zero would match every packet, and all that follows be dead code.
		f.V4[i].Addr[0], f.V4[i].Mask[0] = uint32(i), ^uint32(0)
		f.V6[i].Addr[0], f.V6[i].Mask[0] = uint32(i), ^uint32(0)
	}
	return f
}

func TestVerifierAcceptsFullPrograms(t *testing.T) {
	lab.Root(t)
	always := []membership.Gate{membership.GateAlways}
	all := []membership.Gate{membership.GateSrc, membership.GateDst, membership.GateAlways}
	for _, mode := range []membership.Mode{membership.Exact, membership.Approximate} {
		for name, gates := range map[string][]membership.Gate{"no markers": always, "markers": all} {
			for _, shapes := range []int{1, 8, membership.MaxShapes} {
				t.Run(fmt.Sprintf("%v/%s/%d shapes", mode, name, shapes), func(t *testing.T) {
					set := fullSet(shapes, mode, gates[:min(shapes, len(gates))])
					c := loader.Config{Seed: 1, Block: set, Allow: set, Failsafe: fullFailsafe(), DropMalformed: true, Lists: 3}
					n, ok := verified(t, c)
					t.Logf("%d instructions walked (known: %t)", n, ok)
					if n > maxVerified {
						t.Errorf("the verifier walks %d instructions, want %d at most", n, maxVerified)
					}
				})
			}
		}
	}
}

func verified(t *testing.T, c loader.Config) (instructions uint32, ok bool) {
	t.Helper()
	g, err := loader.NewGeneration(c)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	stats, err := loader.NewStats(c.Lists)
	if err != nil {
		t.Fatal(err)
	}
	defer stats.Close()
	p, err := g.Load(stats)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	defer p.Close()
	return p.VerifiedInstructions()
}

// The program that Go tests is the one that is attached: there is no other.
func TestOneProgram(t *testing.T) {
	spec, err := bpf.LoadWeir()
	if err != nil {
		t.Fatal(err)
	}
	if len(spec.Programs) != 1 || spec.Programs[bpf.WeirProgWeir] == nil {
		t.Errorf("the object has %d programs, want weir alone", len(spec.Programs))
	}
}
