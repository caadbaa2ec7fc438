package measure

import (
	"errors"
	"fmt"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/bench/probe"
)

// pins are separate from those of a daemon on this machine.
const pins = loader.DefaultPins + "-bench"

// weir is weir in one of its modes.
type weir struct {
	place
	config     engine.Config
	generation *engine.Generation
	attachment *loader.Attachment // from enforce; nil after catch
	programs   *probe.Programs    // nil until needed
}

func newExact(p place) contender { return &weir{place: p} }
func newApprox(p place) contender {
	return &weir{place: p, config: engine.Config{Mode: membership.Approximate}}
}

func (w *weir) prepare(b *blocklist) error {
	e, _, err := list.Load(b.path, list.Options{})
	if err != nil {
		return err
	}
	w.generation, err = engine.Build([]engine.List{{Name: b.set, Contents: e.Set()}}, w.config)
	return err
}

func (w *weir) enforce() error {
	p, err := pins.Prepare(loader.Target{Netns: w.wire.B.Netns, Iface: w.wire.B.Iface}, loader.Native)
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
	b, _, err := w.bench(nil)
	if err != nil {
		return err
	}
	return w.wire.attach(b.Wire())
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

func (w *weir) kernelBytes() int { return w.generation.KernelBytes() }

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
