package police

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/stage"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/sfb"
	"weir/loader"
	"weir/loader/netif"
)

// Limits are the limits of an interface.
type Limits struct {
	sfb.Limits
	Name    string    // for status
	V4, V6  key.Shape // of flows
	Stopped bool      // time stands still at the value in the policer's memory, for tests
}

// Part is the share of programs. An interface has the limits of the first that covers it.
type Part struct {
	engine.BasePart
	Interfaces []stage.At[*Limits] // nil: none
}

// at returns the limits of an interface, nil for none.
func (p *Part) at(t netif.Target) *Limits { return stage.Find(p.Interfaces, t) }

// Constants returns those of a policed interface.
func (p *Part) Constants(t netif.Target, seed loader.Seed) map[string]any {
	all := make(map[string]any)
	if l := p.at(t); l != nil {
		all[bpf.WeirVarPolicer] = l.constants(seed)
	}
	return all
}

func (l *Limits) constants(seed loader.Seed) *bpf.WeirPolicerConfig {
	c := &bpf.WeirPolicerConfig{
		Secret: engine.Secret(hash.NewSecret(hash.Seed(seed))), V4: engine.Shape(l.V4), V6: engine.Shape(l.V6),
		Cost: l.Cost, BinCost: l.BinCost, Depth: l.Depth, Limit: l.Limit, Target: l.Target,
		Gap: l.Gap, Lifetime: l.Lifetime, Chunk: l.Chunk, Cpus: uint32(loader.CPUs()), Controller: uint8(l.Controller),
	}
	for flag, is := range map[*uint8]bool{&c.ByPackets: l.Packets, &c.Tuple: l.V4.Tuple(), &c.Stopped: l.Stopped} {
		if is {
			*flag = 1
		}
	}
	return c
}

// General keeps packets of policed interfaces off the lean path.
func (p *Part) General(t netif.Target) string {
	if p.at(t) == nil {
		return ""
	}
	return "the interface is policed"
}

// Keeps returns the memory of a policer.
func (p *Part) Keeps(t netif.Target) map[string]int {
	if p.at(t) == nil {
		return nil
	}
	return map[string]int{bpf.WeirMapPolicerNow: 1, bpf.WeirMapPolicerCpus: loader.CPUs()}
}

// Head returns where a policer's memory has its seed and identity.
func (p *Part) Head(k loader.Kept) (*loader.Seed, *uint64) {
	now := stateOf(k)
	return &now.Seed, &now.Identity
}

// Identity identifies what may go on in the same memory.
func (p *Part) Identity(t netif.Target, seed loader.Seed) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, "four levels of 256 bins, slices of 64", &struct {
		bpf.WeirPolicerConfig
		loader.Seed
	}{*p.at(t).constants(seed), seed})
	return h.Sum64() | 1
}

// Begin seeds the random numbers of each CPU.
func (p *Part) Begin(k loader.Kept) {
	of := cpusOf(k)
	for i := range of {
		var random [8]byte
		_, _ = rand.Read(random[:]) // never fails
		of[i].Random = binary.NativeEndian.Uint64(random[:]) | 1
	}
}
