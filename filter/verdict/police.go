package verdict

import (
	"time"

	"weir/filter/key"
	"weir/filter/penalty"
	"weir/filter/sketch"
)

// Police is the stage that counts the packets of flows, and holds back those
// that have penalties. It stands before the lists: what they would drop is
// counted too, so that a false positive is seen to be heavy.
type Police struct {
	Banks     []*sketch.Bank       // of each tracker, the one that counts now
	Penalties []*penalty.Table     // for each tracker: nil if its flows are only counted
	Now       func() time.Duration // the clock of the penalties
}

// count counts a packet in every tracker. It gives the reason to drop it that
// a penalty of its flows gives, the first that does, or Clean.
func (p *Police) count(t key.Tuple, length int) Reason {
	if p == nil {
		return Clean
	}
	punished := Clean
	for i, b := range p.Banks {
		k := b.Key(t)
		h := b.Hash(k)
		b.CountKey(k, h, uint64(length))
		if p.Penalties[i] == nil || punished != Clean {
			continue // what is dropped takes nothing from another rate
		}
		units := uint64(1)
		if b.Unit == sketch.Bytes {
			units = uint64(length)
		}
		punished = [...]Reason{penalty.None: Clean, penalty.Limited: Limited, penalty.Blocked: Heavy}[p.Penalties[i].Check(h, units, p.Now())]
	}
	return punished
}
