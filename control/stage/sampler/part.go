// Package sampler samples the packets that interfaces receive, whatever becomes of them: see
// bpf/sampler.h. Together with the counters, which are exact, the records say what the traffic
// consists of.
package sampler

import (
	"encoding/binary"
	"sync/atomic"

	"weir/bpf"
	"weir/control/engine"
	"weir/filter/flood"
	"weir/filter/hash"
	"weir/loader"
	"weir/loader/netif"
)

// Spec says whether packets are sampled.
type Spec bool

// Record is a sampled packet.
type Record struct {
	flood.Record
	IP     bool    // false: of Record, only the reason and the interface are known
	Frame  uint32  // its length with the link header, in bytes
	Weight float64 // how many packets it stands for
}

// Part is the share of the programs for incoming packets, of one generation.
type Part struct {
	engine.BasePart
	cpus    []bpf.WeirSamplerCpu
	records []bpf.WeirSamplerRecord
}

// Of returns the sampler of a generation, nil if it has none.
func Of(g *engine.Generation) *Part {
	for _, p := range g.Parts {
		if of, is := p.(*Part); is && of.cpus != nil {
			return of
		}
	}
	return nil
}

// Constants makes incoming packets be sampled.
func (*Part) Constants(t netif.Target, _ loader.Seed) map[string]any {
	return map[string]any{bpf.WeirVarSamplerOn: loader.Flag(!t.Out)}
}

// Maps returns the maps of the banks.
func (*Part) Maps(out bool) (map[string]int, error) {
	if out {
		return nil, nil
	}
	return map[string]int{bpf.WeirMapSamplerCpus: loader.CPUs(), bpf.WeirMapSamplerRecords: 2 * loader.CPUs() * flood.MaxSample}, nil
}

// Fill takes the memory of the banks, which are empty: the first packets are all taken.
func (p *Part) Fill(g *loader.Generation, _ *hash.Secret) error {
	if g.Has(bpf.WeirMapSamplerCpus) { // it is of incoming packets
		p.cpus = loader.EntriesOf[bpf.WeirSamplerCpu](g, bpf.WeirMapSamplerCpus)
		p.records = loader.EntriesOf[bpf.WeirSamplerRecord](g, bpf.WeirMapSamplerRecords)
	}
	return nil
}

// Exchange makes programs record in the other banks, one packet in n. Those under way may
// still write to the former ones, which [Part.Read] reads: see [loader.Grace].
func (p *Part) Exchange(n uint32) {
	for i := range p.cpus {
		c := &p.cpus[i]
		next := 1 - c.Bank&1
		c.Banks[next] = bpf.WeirSamplerBank{Mean: n}
		atomic.StoreUint32(&c.Bank, next)
	}
}

// Read returns the records of the banks in which programs do not record.
func (p *Part) Read() (all []Record) {
	for i := range p.cpus {
		c := &p.cpus[i]
		bank := 1 - c.Bank&1
		of := &c.Banks[bank]
		weight := float64(max(1, of.Mean))
		if of.Count >= flood.MaxSample {
			weight = max(weight, float64(of.Seen)/flood.MaxSample)
		}
		first := (2*i + int(bank)) * flood.MaxSample
		for n := range min(of.Count, flood.MaxSample) {
			all = append(all, record(&p.records[first+int(n)], weight))
		}
	}
	return all
}

// record converts a record of the program.
func record(r *bpf.WeirSamplerRecord, weight float64) Record {
	return Record{IP: r.Family != 0, Frame: r.Len, Weight: weight, Record: flood.Record{
		Src: address(r.Src, r.Family), Dst: address(r.Dst, r.Family), IPv4: r.Family == 4, Protocol: r.Proto,
		SrcPort: r.SrcPort, DstPort: r.DstPort, Flags: r.Flags, TTL: r.Ttl, HeaderLength: r.HeaderLength,
		Fragment: flood.Fragment(r.Fragment), Length: r.Length, ID: r.Id, Window: r.Window, Payload: r.Payload,
		Reason: r.Reason, Conversing: flood.Conversing(r.Conversing), Interface: r.Interface,
	}}
}

// address returns an address as it is in the packet, IPv4 as ::ffff:a.b.c.d.
func address(words [4]uint32, family uint8) (a [16]byte) {
	switch family {
	case 4:
		a[10], a[11] = 0xff, 0xff
		binary.NativeEndian.PutUint32(a[12:], words[0])
	case 6:
		for i, w := range words {
			binary.NativeEndian.PutUint32(a[4*i:], w)
		}
	}
	return a
}

// Limit shortens gaps that were drawn before a rate fell: an interface would have no record for
// long. A gap depends on no packet, so that one which is drawn anew distorts nothing.
func Limit(s *loader.Stats, n uint32, random func(uint32) uint32) {
	s.Read(func(k loader.Kept) {
		rows := loader.Entries[bpf.WeirCpuRow](k, bpf.WeirMapReasonStats)
		for i := range rows {
			g := &rows[i].Sampler
			if atomic.LoadUint32(&g.Left) > 4*n {
				gap := 1 + random(2*n-1)
				atomic.StoreUint32(&g.Gap, gap)
				atomic.StoreUint32(&g.Left, gap-1)
			}
		}
	})
}
