package measure

import (
	"errors"
	"net/netip"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/cascade"
	"weir/filter/cuckoo"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/tests/bench/probe"
)

// The contenders of ipv6, besides weir: its lookup alone, by its own hash and by the
// XXH64 of earlier versions, in the same structures.
const (
	lookupKeyed = "lookup-keyed"
	lookupXXH64 = "lookup-xxh64"
)

// ipv6 measures packets from IPv6 addresses.
func (s *session) ipv6() (err error) {
	b, err := s.lists.make(setRandom, s.wide)
	if err != nil {
		return err
	}
	c, err := s.enterAll(b, []kind{
		{name: xdpDrop, make: newDrop, blind: true},
		{name: bare, make: newBare, blind: true, silent: true},
		{name: weirExact, make: func(p place) contender { return &weir6{weir: weir{place: p}} }},
		{name: lookupKeyed, make: func(p place) contender { return &weir6{weir: weir{place: p}, alone: true} }},
		{name: lookupXXH64, make: func(p place) contender { return &weir6{weir: weir{place: p}, alone: true, xxh64: true} }},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for _, w := range c.wireOf {
		w.frame = frameTo(w.Playground, w.A.IPv6, w.B.IPv6)
		from := wide(0).As16()
		copy(w.frame[14+8:], from[:])
	}
	return s.cleanAndListed("ipv6", c, b, func(_ series, added []Result) {
		for i := range added {
			if w, ok := c.by[added[i].Contender].(*weir6); ok {
				added[i].KernelEntry = float64(w.kernelBytes()) / float64(b.n())
			}
		}
	})
}

// wide returns the IPv6 address that ends with an IPv4 one.
func wide(addr uint32) netip.Addr {
	a := netip.MustParseAddr("2001:db8::").As16()
	end := wireOrder(addr)
	copy(a[12:], end[:])
	return netip.AddrFrom16(a)
}

// weir6 is weir with IPv6 addresses that end with those of a list.
type weir6 struct {
	weir
	alone bool // nothing but the lookup
	xxh64 bool
}

func (w *weir6) prepare(b *blocklist) (err error) {
	var e list.Entries
	for _, p := range b.entries {
		e.V6 = append(e.V6, netip.PrefixFrom(wide(p.Addr()), 128))
	}
	set := e.Set()
	if w.generation, err = engine.Build(w.lists(b, set), w.config); err != nil || !w.alone {
		return err
	}
	if w.xxh64 {
		if err := w.fillXXH64(b); err != nil {
			return err
		}
	}
	w.programs, err = probe.LoadV6(w.generation.Kernel(), w.keys)
	return err
}

// fillXXH64 fills cascade and table anew by another hash.
func (w *weir6) fillXXH64(b *blocklist) error {
	layout, memory := w.generation.Block.Layout, w.generation.Kernel().Block()
	clear(memory.Lines)
	clear(memory.Buckets)
	cascade, table := cascade.New(memory.Lines, layout.First, layout.Rest), cuckoo.Over(memory.Buckets)
	seed := layout.Secret.Offsets[0][0]
	for _, p := range b.entries {
		k := key.Source(netip.PrefixFrom(wide(p.Addr()), 128))
		h := hash.Sum(seed, k.Append(nil))
		if err := table.Add(h, 1); err != nil {
			return err
		}
		cascade.Add(h)
	}
	return nil
}

func (w *weir6) catch() error {
	if !w.xxh64 {
		return w.weir.catch()
	}
	p, err := w.programs.WireXXH64()
	if err != nil {
		return err
	}
	return w.wire.attach(p)
}
