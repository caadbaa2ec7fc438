package engine

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/loader"
	"weir/tests/long"
	"weir/tests/must"
)

// kindOfEntry makes random entries of a kind, and packets that they match.
type kindOfEntry struct {
	name   string
	random func(*rand.Rand) key.Tuple
	add    func(*list.Entries, key.Tuple)
}

func kindsOfEntries() []kindOfEntry {
	v4 := func(r *rand.Rand) key.Tuple {
		n := r.Uint32()
		return key.Tuple{
			Src: netip.AddrFrom4([4]byte{1 + byte(n>>24)%200, byte(n >> 16), byte(n >> 8), byte(n)}), Dst: netip.AddrFrom4([4]byte{192, 0, 2, 1}),
			Proto: 6, HasPorts: true, SrcPort: uint16(r.Uint32()) | 1024, DstPort: 443,
		}
	}
	v6 := func(r *rand.Rand) key.Tuple {
		t, n := v4(r), r.Uint64()
		a := netip.MustParseAddr("2001:db8::1").As16()
		t.Dst = netip.AddrFrom16(a)
		for i := range 8 {
			a[4+i] = byte(n >> (8 * i))
		}
		t.Src = netip.AddrFrom16(a)
		return t
	}
	flow := key.Shape{Fields: key.FieldProto | key.FieldSrcPort | key.FieldDstPort, SrcBits: 32, DstBits: 32}
	return []kindOfEntry{
		{"IPv4", v4, func(e *list.Entries, t key.Tuple) {
			e.V4 = append(e.V4, list.V4Of(netip.PrefixFrom(t.Src, 32)))
		}},
		{"IPv6", v6, func(e *list.Entries, t key.Tuple) {
			e.V6 = append(e.V6, netip.PrefixFrom(t.Src, 128))
		}},
		{"flows", v4, func(e *list.Entries, t key.Tuple) {
			k, _ := flow.Of(t)
			e.Flows = append(e.Flows, k)
		}},
	}
}

// The memory and the time of a packet in the two modes. The memory is within what the bits of
// the entries take, and, of other entries than IPv4 addresses, far below that of exact mode.
// The times are for docs/approximate.md: packets that are all different, each of them once, and
// the same one again and again; in turns, so that what else the machine does meets both.
func TestModes(t *testing.T) {
	sizes := long.Or([]int{50_000}, []int{100_000, 1_000_000, 10_000_000})
	const bits, each = 10, 3000
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "entries\t\tmode\tbytes an entry\tfalse drops\tns clean\tlisted\tagain, clean\tlisted")
	for _, kind := range kindsOfEntries() {
		for _, n := range sizes {
			if kind.name == "flows" {
				n = min(n, 2_000_000) // of the test's own memory
			}
			r := rand.New(rand.NewPCG(uint64(n), 1))
			var e list.Entries
			var frames [2][][]byte
			for i := range n {
				tuple := kind.random(r)
				kind.add(&e, tuple)
				if i < each {
					frames[1] = append(frames[1], packet.Frame(tuple))
				}
			}
			lists := blockList(e.Set())
			n = lists[0].Contents.Len()
			for len(frames[0]) < each {
				frames[0] = append(frames[0], packet.Frame(kind.random(r))) // practically none is listed
			}
			var memory [2]int
			var rates [2]float64
			var programs [2]*loader.Program
			for mode := range programs {
				g, err := Build(lists, Config{Mode: membership.Mode(mode), BitsPerKey: bits})
				if err != nil {
					t.Skip(err) // without privileges
				}
				defer g.Close()
				s, err := loader.NewStats(0)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				if programs[mode], err = g.Load(s); err != nil {
					t.Fatal(err)
				}
				defer programs[mode].Close()
				memory[mode] = g.KernelBytes()
				if mode == int(membership.Approximate) {
					rates[mode] = g.Block.FalsePositiveRate(n)
				}
			}
			if most := float64(bits*n)/8*1.1 + 1<<20; float64(memory[1]) > most {
				t.Errorf("%d %s: %d bytes in approximate mode, want at most %.0f", n, kind.name, memory[1], most)
			}
			if kind.name != "IPv4" && 2.5*float64(memory[1]) > float64(memory[0]) {
				t.Errorf("%d %s: %d bytes in approximate mode, %d in exact mode", n, kind.name, memory[1], memory[0])
			}
			var times [2][2][2][]time.Duration // by mode, listed, again
			for i := range each {
				for l := range 2 {
					for _, again := range []int{0, 1} {
						if again > 0 && i%100 > 0 {
							continue
						}
						for m := range 2 {
							d, err := programs[m].Time(frames[l][i], 1+again*1000)
							if err != nil {
								t.Fatal(err)
							}
							times[m][l][again] = append(times[m][l][again], d)
						}
					}
				}
			}
			for m := range 2 {
				fmt.Fprintf(out, "%d\t%s\t%v\t%.2f\t%.2g", n, kind.name, membership.Mode(m), float64(memory[m])/float64(n), rates[m])
				for again := range 2 {
					for l := range 2 {
						slices.Sort(times[m][l][again])
						all := times[m][l][again]
						fmt.Fprintf(out, "\t%d", all[len(all)/2].Nanoseconds())
					}
				}
				fmt.Fprintln(out)
			}
		}
	}
	out.Flush()
}

// A hundred million addresses of IPv6 at 12 bits take 150 MB of the kernel's memory. Where this
// machine has not enough for the lists themselves, there are twenty million.
func TestLargestApproximate(t *testing.T) {
	long.Only(t, "minutes, and gigabytes for the lists")
	n := long.Rounds(20_000_000, 20_000_000, 100_000_000)
	if available(t) < 14<<30 {
		n = 20_000_000
	}
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	// The listed ones, below n, are in order, so that nothing has to sort them. The others are
	// between them.
	address := func(i int) netip.Prefix {
		a := [16]byte{0x20, 0x01, 0x0d, 0xb8}
		binary.BigEndian.PutUint64(a[4:], uint64(2*(i%n)+i/n)*(math.MaxUint64/uint64(2*n)))
		return netip.PrefixFrom(netip.AddrFrom16(a), 128)
	}
	e := list.Entries{V6: make([]netip.Prefix, n)}
	for i := range e.V6 {
		e.V6[i] = address(i)
	}
	began := time.Now()
	lists := blockList(e.Set())
	e.V6 = nil
	t.Logf("a list of %d entries in %v", n, time.Since(began).Round(time.Second))
	began = time.Now()
	g, err := Build(lists, Config{Mode: membership.Approximate, BitsPerKey: 12})
	if err != nil {
		t.Skip(err) // without privileges
	}
	defer g.Close()
	built := time.Since(began)
	if most := n * 3 / 2 * 1001 / 1000; g.KernelBytes() > most+1<<16 {
		t.Errorf("%d entries take %d bytes, want at most %d", n, g.KernelBytes(), most)
	}
	r, found, wrong := rand.New(rand.NewPCG(1, 2)), 0, 0
	const tries = 1_000_000
	for range tries {
		for i, count := range []*int{&found, &wrong} {
			_, ok := g.Block.Match(key.Tuple{Src: address(i*n + r.IntN(n)).Addr(), Dst: netip.IPv6LinkLocalAllNodes(), Proto: 59})
			if ok {
				*count++
			}
		}
	}
	predicted := g.Block.FalsePositiveRate(n)
	t.Logf("%d entries: %d bytes of the kernel's memory, built in %v; %.5f dropped by mistake, %.5f predicted",
		n, g.KernelBytes(), built.Round(time.Second), float64(wrong)/tries, predicted)
	if found != tries {
		t.Errorf("%d of %d listed addresses are found", found, tries)
	}
	if off := math.Abs(float64(wrong)/tries - predicted); off > 5*math.Sqrt(predicted/tries) {
		t.Errorf("%d of %d are dropped by mistake, want %.0f", wrong, tries, predicted*tries)
	}
	if _, err := g.Apply([]Change{{List: 1, Delta: list.Delta{Remove: list.SetOf(key.Source(address(7))), Add: list.SetOf(key.Source(address(n)))}}}); err != nil {
		t.Error(err)
	}
}

// available returns the memory that this machine can still give.
func available(t *testing.T) (bytes int) {
	t.Helper()
	text := must.Read(t, "/proc/meminfo")
	_, after, _ := strings.Cut(string(text), "MemAvailable:")
	if _, err := fmt.Sscan(after, &bytes); err != nil {
		t.Fatal(err)
	}
	return bytes << 10
}
