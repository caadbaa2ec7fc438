package measure

import (
	"cmp"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/cilium/ebpf"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/list/listfile"
	digests "weir/control/stage/digest"
	"weir/control/stage/first"
	"weir/control/stage/tracker"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/hooks"
	"weir/loader/netif"
	"weir/tests/bench/probe"
)

// pins are separate from those of a daemon on this machine.
const pins = loader.DefaultPins + "-bench"

// weir is weir under a configuration.
type weir struct {
	place
	configuration
	generation *engine.Generation
	attachment *loader.Attachment // from enforce; nil after catch
	programs   *probe.Programs    // nil until needed
}

// configuration has an operator's choices.
type configuration struct {
	config engine.Config
	n      int          // number of lists; 0: mostLists
	beside list.Entries // further entries, in the second list
	allow  bool         // has an allow list
	units  int          // of a flow from which it is a heavy hitter; 0: mostUnits
	forget bool         // no pairs of a scan detector, and no flows, are known when a turn begins
}

// Configurations. usual has the options of many operators: a failsafe port, an allow list, and
// a tracker of sources.
var (
	exact       = configuration{}
	approximate = configuration{config: engine.Config{Mode: membership.Approximate}}
	usual       = configuration{config: engine.Config{Policy: failsafe, Parts: []engine.Part{sources}, Seed: hash.Seed{1}}, allow: true}

	failsafe = verdict.Policy{FailsafePorts: []verdict.FailsafePort{{Proto: 6, Port: 22}}}
	sources  = &tracker.Part{In: []tracker.Counting{tracker.DefaultSpec("src").Counting()}}
)

func newWeir(c configuration) func(place) contender {
	return func(p place) contender { return &weir{place: p, configuration: c} }
}

// mostLists is the usual number of lists, of which all but the first are empty: an operator
// has several, and an entry's list takes four bits then.
const mostLists = 15

func (w *weir) lists(b *blocklist, contents *list.Set) []engine.List {
	all := []engine.List{{Name: b.set, Contents: contents}}
	for len(all) < cmp.Or(w.n, mostLists) {
		all = append(all, engine.List{Name: fmt.Sprintf("empty-%d", len(all)), Contents: singles(nil)})
	}
	all[1].Contents = w.beside.Set()
	if w.allow {
		all[1] = engine.List{Name: "allowed", Allow: true, Contents: singles(b.unlisted(16))}
	}
	return all
}

func (w *weir) prepare(b *blocklist) error {
	e, _, err := listfile.Load(b.path, listfile.Options{})
	if err != nil {
		return err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(25)) // as the daemon does when it has read lists
	w.generation, err = engine.Build(w.lists(b, e.Set()), w.config)
	return err
}

func (w *weir) enforce() error { return w.enforceAt(hooks.Native) }

func (w *weir) enforceAt(hook hooks.Hook) error {
	p, err := pins.Prepare(netif.Target{Netns: w.wire.B.Netns, Iface: w.wire.B.Iface}, hook)
	if err != nil {
		return err
	}
	defer p.Close()
	program, err := w.generation.Load(p.Stats())
	if err != nil {
		return err
	}
	w.attachment, err = p.Attach(program, nil)
	return err
}

func (w *weir) catch() error {
	if err := w.detach(); err != nil {
		return err
	}
	p, err := w.program()
	if err != nil {
		return err
	}
	return w.wire.attach(p)
}

// program returns the program that catches packets on a wire.
func (w *weir) program() (*ebpf.Program, error) {
	b, _, err := w.bench(nil)
	if err != nil {
		return nil, err
	}
	return b.Wire()
}

// sliceLen is the number of packets for which the filter of a slice of digests is made, and
// of new flows in a window.
const sliceLen = 100_000

// mostUnits is the number of packets of a flow from which it is a heavy hitter: 0.1 %
// of those of a second.
const mostUnits = 4 << 20 / 1000

// forgets returns the first-seen flows that are forgotten each time, nil: none.
func (w *weir) forgets() *first.Part {
	for _, p := range w.config.Parts {
		if flows, is := p.(*first.Part); is && w.forget {
			return flows
		}
	}
	return nil
}

// recorded returns the digests of the programs, nil: none.
func (w *weir) recorded() *digests.Part {
	for _, p := range w.config.Parts {
		if of, is := p.(*digests.Part); is {
			return of
		}
	}
	return nil
}

// beginSlice begins a slice of digests, in an empty filter. Programs must not run.
func beginSlice(m *digests.Memory) {
	m.Exchange()
	m.Begin(1-m.Active(), 0)
}

// begin begins an interval of trackers, a slice of digests and, where nothing is to be known,
// a window of first-seen flows. Programs must not run.
func (w *weir) begin() error {
	if len(tracker.Of(w.generation)) > 0 {
		n, err := tracker.Open(w.generation, w.programs.Stats())
		if err != nil {
			return err
		}
		for i := range tracker.Of(w.generation) {
			for _, b := range n.Banks(i, n.Active(i)) {
				b.Reset()
				b.Admit(sketch.Threshold{Units: uint64(cmp.Or(w.units, mostUnits))}.Admission(0, 1))
			}
		}
		if w.forget {
			n.Pairs(0, n.Active(0)).Clear()
		}
		if err := n.Close(); err != nil {
			return err
		}
	}
	if flows := w.forgets(); flows != nil {
		flows.Read(w.programs.Stats(), func(m *first.Memory) {
			m.Turn(0, false) // twice: the former window counts, too
			m.Turn(0, false)
		})
	}
	if d := w.recorded(); d != nil {
		d.Read(w.programs.Stats(), beginSlice)
	}
	return nil
}

func (w *weir) received() (all, listed uint64, err error) {
	all, listed = counted(w.programs)
	return all, listed, nil
}

// counted returns the packets that programs on the wire counted.
func counted(b *probe.Programs) (all, listed uint64) {
	reasons := b.Stats().Reasons(nil)
	for _, c := range reasons {
		all += c.Packets
	}
	return all, reasons[verdict.Blocked].Packets
}

func (w *weir) update(add, remove []uint32) error {
	d := list.Delta{Add: singles(add), Remove: singles(remove)}
	n, err := w.generation.Apply([]engine.Change{{List: 1, Delta: d}})
	if err == nil && n != d.Len() {
		err = fmt.Errorf("%d of %d changes were made", n, d.Len())
	}
	return err
}

func source(addr uint32) key.Key { return single(addr).Key(true) }

// singles returns the set of some addresses.
func singles(addrs []uint32) *list.Set {
	var e list.Entries
	for _, a := range addrs {
		e.V4 = append(e.V4, single(a))
	}
	return e.Set()
}

func (w *weir) bench(b *blocklist) (_ *probe.Programs, loop string, err error) {
	if w.programs == nil {
		if w.programs, err = probe.Load(w.generation.Kernel(), w.keys); err != nil {
			return nil, "", err
		}
	}
	if b != nil && b.prefixes {
		return w.programs, "match", nil
	}
	return w.programs, "weir", nil
}

// kernelBytes is the memory that packets are looked up in.
func (w *weir) kernelBytes() int {
	return w.generation.KernelBytes()
}

func (w *weir) detach() (err error) {
	if w.attachment != nil {
		err = w.attachment.Detach()
	}
	w.attachment = nil
	return err
}

func (w *weir) Close() error {
	err := w.detach()
	if w.programs != nil {
		err = errors.Join(err, w.programs.Close())
	}
	if w.generation != nil {
		err = errors.Join(err, w.generation.Close())
	}
	return err
}
