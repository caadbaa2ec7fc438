package contract

import (
	"testing"
	"time"

	"weir/loader"
)

// fullConfig has n shapes of each kind in both sets.
func fullConfig(n int, kinds int, allow bool, gates uint32, exact bool) loader.Config {
	set := func() loader.KeySet {
		gate4, gate6 := uint32(0), uint32(0)
		k := loader.KeySet{Lines: 64, First: 6, Buckets: 64, Marks6Lines: 64, GatesV4: gates, GatesV6: gates}
		if !exact {
			k.Buckets, k.First, k.Rest = 0, 5, 6
		}
		for i, kind := range []struct {
			shapes *[32]loader.Shape
			n      *uint32
			head   uint32
		}{{&k.V4, &k.N_v4, 0}, {&k.V4Flow, &k.N_v4Flow, 2}, {&k.V6, &k.N_v6, 1}, {&k.V6Flow, &k.N_v6Flow, 3}} {
			if kinds>>i&1 == 0 {
				continue
			}
			for j := range n {
				s := &kind.shapes[j]
				s.Head = kind.head | uint32(j)<<8
				for g := uint32(1); g <= 4; g <<= 1 {
					if gates&g != 0 && (s.Gate == 0 || j%3 == int(g/2)) {
						s.Gate = g
					}
				}
				if i < 2 {
					gate4 |= s.Gate
				} else {
					gate6 |= s.Gate
				}
				s.SrcMask[0] = ^uint32(0) >> j
				if i%2 == 1 {
					s.PortsMask = 0xffff * uint32(j%2)
					s.ProtoMask = 0xff << 24
				}
				*kind.n++
			}
		}
		k.GatesV4, k.GatesV6 = gate4, gate6
		return k
	}
	c := loader.Config{Seed: 1, Block: set(), Lists: 3}
	if allow {
		c.Allow = set()
	}
	return c
}

func TestVerifier(t *testing.T) {
	requireRoot(t)
	for _, tt := range []struct {
		n, kinds int
		allow    bool
		gates    uint32
		exact    bool
	}{{1, 1, false, 1, true}, {8, 1, false, 1, true}, {8, 1, false, 3, true}, {8, 1, false, 7, true}, {8, 1, true, 1, true}, {8, 2, false, 1, true}, {8, 2, false, 7, true}, {8, 15, false, 1, true}, {8, 15, true, 1, true}, {16, 15, false, 7, true}, {16, 15, true, 7, true}, {32, 15, true, 7, true}, {32, 15, true, 7, false}} {
		g, err := loader.NewGeneration(fullConfig(tt.n, tt.kinds, tt.allow, tt.gates, tt.exact))
		if err != nil {
			t.Error(err)
			continue
		}
		stats, _ := loader.NewStats(3)
		at := time.Now()
		p, err := g.Load(stats)
		if err != nil {
			t.Errorf("%+v: %v %v", tt, err, time.Since(at))
			continue
		}
		n, _ := p.VerifiedInstructions()
		t.Logf("%+v: %d %v", tt, n, time.Since(at))
		p.Close()
		g.Close()
	}
}
