package loader

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"sync/atomic"

	"weir/bpf"
)

// Policer has the constants of policing on an interface; the loader sets Cpus. With a
// cost of 0, nothing is policed.
type Policer = bpf.WeirPolicerConfig

// PolicerState and PolicerCPU are a policer's memory: what all CPUs share, and what each
// has for itself.
type (
	PolicerState = bpf.WeirPolicerState
	PolicerCPU   = bpf.WeirPolicerCpu
)

// PolicerOutcomes is the number of outcomes, POLICER_OUTCOMES.
const PolicerOutcomes = int(bpf.WeirPolicerOutcomePOLICER_OUTCOMES)

// policing is a policer with the seed of its secret.
type policing struct {
	Policer
	seed Seed
}

// identity identifies what may go on in the same memory, 0 for no policer.
func (p *policing) identity() uint64 {
	if p.Cost == 0 {
		return 0
	}
	h := fnv.New64a()
	fmt.Fprint(h, "four levels of 256 bins, slices of 64", p)
	return h.Sum64() | 1
}

// SetPolicer polices the interface of programs that are loaded from now on. The
// constants' secret derives from the seed. With the constants that the present program
// has, and [Stats.PolicerSeed], its state goes on.
func (s *Stats) SetPolicer(p Policer, seed Seed) {
	p.Cpus = uint32(s.cpus)
	s.policing.Store(&policing{p, seed})
}

// policer returns what SetPolicer has set.
func (s *Stats) policer() *policing {
	if p := s.policing.Load(); p != nil {
		return p
	}
	return &policing{}
}

// Polices reports whether SetPolicer has set a policer.
func (s *Stats) Polices() bool { return s.policer().Cost != 0 }

// PolicerSeed returns the seed of the policer in these stats, zero if there is none.
func (s *Stats) PolicerSeed() (seed Seed) {
	s.read(func(k pinnedMaps) { seed = k.policer().Seed })
	return seed
}

func (k pinnedMaps) policer() *PolicerState {
	return &entriesOf[PolicerState](k[bpf.WeirMapPolicerNow])[0]
}

// newPolicer returns memory for a policer that has seen nothing.
func newPolicer(p *policing, cpus int) (pinnedMaps, error) {
	k, err := newPinnedMaps(map[string]int{bpf.WeirMapPolicerNow: 1, bpf.WeirMapPolicerCpus: cpus})
	if err != nil {
		return nil, fmt.Errorf("policer: %w", err)
	}
	state := k.policer()
	state.Seed, state.Identity = p.seed, p.identity()
	of := entriesOf[PolicerCPU](k[bpf.WeirMapPolicerCpus])
	for i := range of {
		var random [8]byte
		_, _ = rand.Read(random[:]) // never fails
		of[i].Random = binary.NativeEndian.Uint64(random[:]) | 1
	}
	return k, nil
}

// Policed is what a policer has done, and its state.
type Policed struct {
	Outcomes [PolicerOutcomes]Counter
	Fair     uint64 // units in a tick of 10 ms, times 2^8, that each flow may have
	Boxed    int    // bins that are in the penalty box, or would be without the guard
	Guarded  bool   // so many bins would be in the penalty box that none is
}

// Policed returns what the interface's policer has done, and false where there has been
// none. It makes no system call.
func (s *Stats) Policed() (p Policed, ok bool) {
	s.read(func(k pinnedMaps) {
		state := k.policer()
		if ok = state.Identity != 0; !ok {
			return
		}
		p.Fair = atomic.LoadUint64(&state.Fair)
		p.Guarded = atomic.LoadUint64(&state.Guarded) != 0
		for i := range state.Slices {
			p.Boxed += int(atomic.LoadUint64(&state.Slices[i].Boxed))
		}
		of := entriesOf[PolicerCPU](k[bpf.WeirMapPolicerCpus])
		for cpu := range of {
			for i := range p.Outcomes {
				p.Outcomes[i].Packets += atomic.LoadUint64(&of[cpu].Outcomes[i].Packets)
				p.Outcomes[i].Bytes += atomic.LoadUint64(&of[cpu].Outcomes[i].Bytes)
			}
		}
	})
	return p, ok
}

// PolicerMemory calls fn with the memory of the interface's policer, which the program
// writes at the same time. It is valid until fn returns.
func (s *Stats) PolicerMemory(fn func(*PolicerState, []PolicerCPU)) {
	s.read(func(k pinnedMaps) {
		fn(k.policer(), entriesOf[PolicerCPU](k[bpf.WeirMapPolicerCpus]))
	})
}
