package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weir/control/observe/heavy"
	"weir/control/status"
	"weir/filter/icarus"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
)

// options are those of a filter with one list on the far ends of wires.
func options(t *testing.T, log *bytes.Buffer, ends ...lab.End) Options {
	t.Helper()
	o := Options{Version: "test", Log: slog.New(slog.NewTextHandler(log, nil))}
	dir, err := os.MkdirTemp("/sys/fs/bpf", "weir-test-")
	if err != nil {
		t.Fatal(err)
	}
	o.Pins = Pins(dir)
	t.Cleanup(func() {
		if _, err := DetachAll(o.Pins); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	for _, e := range ends {
		o.Places = append(o.Places, Place{Target: Target{Netns: e.Netns, Iface: e.Iface}})
	}
	o.Rules.Block = []string{feed(t, "10.0.0.1\n")}
	return o
}

func feed(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "feed.txt")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func begin(t *testing.T, o Options) *Filter {
	t.Helper()
	f, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// states are those of all interfaces, by name of the namespace.
func states(t *testing.T, pins Pins) map[string]status.Interface {
	t.Helper()
	all, err := status.Read(pins)
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]status.Interface{}
	for _, i := range all {
		states[i.Netns] = i
	}
	return states
}

func TestStartStopped(t *testing.T) {
	var log bytes.Buffer
	o := options(t, &log, lab.New(t).B)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := Start(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("started: %v", err)
	}
	if all := states(t, o.Pins); len(all) != 0 {
		t.Errorf("attached: %+v", all)
	}
}

// Where the filter cannot be put in force everywhere, an interface that was
// filtered before stays so, even if nobody knows by what.
// attachLoaded attaches the program that load returns.
func attachLoaded(d loader.Pins, to loader.Target, hook loader.Hook, metadata []byte, load func(*loader.Stats) (*loader.Program, error)) (*loader.Attachment, error) {
	p, err := d.Prepare(to, hook)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	program, err := load(p.Stats())
	if err != nil {
		return nil, err
	}
	return p.Attach(program, metadata)
}

func TestStartUndone(t *testing.T) {
	for _, about := range []string{`{}`, `"what is this"`} {
		l := lab.New(t)
		var log bytes.Buffer
		o := options(t, &log, l.B)
		g, err := loader.NewGeneration(loader.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		a, err := attachLoaded(o.Pins, o.Places[0].Target, loader.Native, []byte(about), g.Load)
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
		o.Places = append(o.Places, Place{Target: Target{Netns: l.A.Netns, Iface: l.A.Iface}}, Place{Target: Target{Netns: l.B.Netns, Iface: "nosuch"}})
		if _, err := Start(t.Context(), o); !errors.Is(err, loader.ErrNoInterface) {
			t.Fatal(err)
		}
		all := states(t, o.Pins)
		if i, ok := all[l.B.Netns]; len(all) != 1 || !ok || i.Severed || i.Since.IsZero() {
			t.Errorf("attached: %+v", all)
		}
		if got := strings.Contains(log.String(), "description of the attachment"); got != (about != `{}`) {
			t.Errorf("%s: log:\n%s", about, &log)
		}
	}
}

// Counters under other reasons are not taken over.
func TestOtherReasons(t *testing.T) {
	var log bytes.Buffer
	o := options(t, &log, lab.New(t).B)
	g, err := loader.NewGeneration(loader.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	a, err := attachLoaded(o.Pins, o.Places[0].Target, loader.Native, []byte(`{"counted_reasons": ["rain", "snow"]}`), func(s *loader.Stats) (*loader.Program, error) {
		p, err := g.Load(s)
		if err == nil {
			_, err = p.Test(make([]byte, 60)) // to be counted
		}
		return p, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if i, err := status.Of(a); err != nil || i.Total.Packets == 0 || i.Reasons["rain"] != i.Total && i.Reasons["snow"] != i.Total {
		t.Errorf("%+v, %v", i, err)
	}
	a.Close()
	f := begin(t, o)
	if c := f.Counters(); c[verdict.NotIP].Packets != 0 || c[verdict.Clean].Packets != 0 {
		t.Errorf("counters %v", c)
	}
	if err := f.Stop(); err != nil {
		t.Error(err)
	}
}

// A filter that another replaces, while it is about to reload or to stop, leaves
// that one's program alone.
func TestReplaced(t *testing.T) {
	for name, do := range map[string]func(*Filter) error{"reload": (*Filter).Reload, "stop": (*Filter).Stop} {
		t.Run(name, func(t *testing.T) {
			l := lab.New(t)
			var log bytes.Buffer
			o := options(t, &log, l.B)
			f := begin(t, o)
			dir, err := os.Open(string(o.Pins))
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			done := make(chan error)
			go func() { done <- do(f) }()
			time.Sleep(300 * time.Millisecond) // it waits for the lock
			want := replacePinned(t, o.Pins)
			dir.Close()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if i := states(t, o.Pins)[l.B.Netns]; i.ProgramID != want {
				t.Errorf("attached: %+v, want program %d", i, want)
			}
			f.Stop()
		})
	}
}

// replacePinned replaces the program of the only attachment, as another process
// does that has the lock, and returns the program's ID.
func replacePinned(t *testing.T, pins Pins) uint32 {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(string(pins), "*", "link"))
	if err != nil || len(paths) != 1 {
		t.Fatal(paths, err)
	}
	l, err := link.LoadPinnedLink(paths[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // XDP_PASS
		Flags:        unix.BPF_F_XDP_HAS_FRAGS,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := l.Update(p); err != nil {
		t.Fatal(err)
	}
	info, err := l.Info()
	if err != nil {
		t.Fatal(err)
	}
	return uint32(info.Program)
}

// When a reload fails half way, and cannot be undone, it says where the new
// lists stay.
func TestReloadStuck(t *testing.T) {
	for _, stuck := range []bool{false, true} {
		t.Run(fmt.Sprint(stuck), func(t *testing.T) {
			one, two := lab.New(t), lab.New(t)
			var log bytes.Buffer
			o := options(t, &log, one.B, two.B)
			f := begin(t, o)
			defer f.Stop()
			// With so many lists, their counters move to new maps, and on the
			// second interface there is no place any more to pin them.
			for range 100 {
				f.o.Rules.Block = append(f.o.Rules.Block, feed(t, "10.0.0.2\n"))
			}
			unpin(t, o.Pins, two.B)
			want, entries := "the old lists stay in force: ", 1
			if stuck {
				f.generation.Close() // which then cannot be put back
				want, entries = "the old lists stay in force, but on "+o.Places[0].String()+" the new ones do: ", 101
			}
			if err := f.Reload(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("reload: %v, want %q", err, want)
			}
			if got := states(t, o.Pins)[one.B.Netns].Entries; got != entries {
				t.Errorf("%d entries are described, want %d", got, entries)
			}
			if strings.Contains(log.String(), "reloaded") {
				t.Error("a failed reload was announced")
			}
		})
	}
}

// A configuration that fails half way leaves no trace in the programs that are put
// back: what they take for an edge of the loops' domain is what it was.
func TestReconfigureUndone(t *testing.T) {
	one, two := lab.New(t), lab.New(t)
	o := options(t, new(bytes.Buffer), one.B, two.B)
	node, err := icarus.NewNode(1, 0, icarus.Key{}, icarus.Geometry{Size: 64, K: 5, Confirm: 1})
	if err != nil {
		t.Fatal(err)
	}
	o.Loop = &Loop{Node: node, ID: 1}
	f := begin(t, o)
	defer f.Stop()
	h := f.holds[0]
	program, before := h.ProgramID(), constants(t, h)

	next := o
	next.Loop = &Loop{Node: node, ID: 1, Edges: []string{one.B.Iface, two.B.Iface}}
	spec, err := heavy.Parse("key=src,threshold=1kpps")
	if err != nil {
		t.Fatal(err)
	}
	next.Track = []heavy.Spec{spec} // its maps are to be pinned
	unpin(t, o.Pins, two.B)
	if err := f.Reconfigure(next); err == nil || !strings.Contains(err.Error(), "the old lists stay in force: ") {
		t.Fatalf("reconfigure: %v", err)
	}
	if h.ProgramID() == program {
		t.Fatal("it did not fail half way")
	}
	if !bytes.Equal(constants(t, h), before) {
		t.Error("the program that was put back has other constants")
	}
	if len(f.o.Track) != 0 || len(f.o.Loop.Edges) != 0 {
		t.Errorf("options: %+v", f.o)
	}
}

// constants are those of the program that is attached.
func constants(t *testing.T, h *hold) []byte {
	t.Helper()
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(h.ProgramID()))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if info, err := m.Info(); err != nil || !strings.HasSuffix(info.Name, ".rodata") {
			continue
		}
		text, err := m.LookupBytes(uint32(0))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	t.Fatal("the program has no constants")
	return nil
}

// unpin removes the pins of an end: whatever wants a new one there fails.
func unpin(t *testing.T, pins Pins, e lab.End) {
	t.Helper()
	target := Target{Netns: e.Netns, Iface: e.Iface}
	inode, err := target.Namespace()
	if err != nil {
		t.Fatal(err)
	}
	index, err := target.Number()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(fmt.Sprintf("%s/%d:%d", pins, inode, index)); err != nil {
		t.Fatal(err)
	}
}

// Places that cannot be looked for are refused before anything has changed.
func TestReconfigurePlaces(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	o := options(t, &log, l.B)
	f := begin(t, o)
	defer f.Stop()
	next := o
	next.Places = append(slices.Clone(o.Places), Place{Target: Target{Netns: l.B.Netns, Iface: "wan["}})
	if err := f.Reconfigure(next); err == nil || !strings.Contains(err.Error(), `"wan["`) {
		t.Errorf("reconfigure: %v", err)
	}
	if f.generations != 1 || len(f.o.Places) != 1 {
		t.Errorf("generation %d is in force, of %v", f.generations, f.o.Places)
	}

	// Those for which that is so only later, as for want of a privilege, are told of once.
	f.o.Places = next.Places
	for range 3 {
		if err := f.follow(); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(log.String(), "wan["); n != 1 {
		t.Errorf("told %d times:\n%s", n, &log)
	}
}

// Where a pattern may yet mean other interfaces, nobody who detaches the last one
// ends the filter; another weir that takes it over does. Of one that is another's
// from the start, the log tells once.
func TestLost(t *testing.T) {
	theirs := func(t *testing.T, o Options, iface string) {
		t.Helper()
		g, err := loader.NewGeneration(loader.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		a, err := attachLoaded(o.Pins, Target{Netns: o.Places[0].Netns, Iface: iface}, loader.Native, nil, g.Load)
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
	}
	for _, c := range []struct {
		name, place string
		lose        func(*testing.T, Options)
		want        error
	}{
		{"detached", "wan*", func(t *testing.T, o Options) {
			if _, err := DetachAll(o.Pins); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"the only name detached", "wan1", func(t *testing.T, o Options) {
			if _, err := DetachAll(o.Pins); err != nil {
				t.Fatal(err)
			}
		}, errLost},
		{"taken over", "wan*", func(t *testing.T, o Options) { theirs(t, o, "wan1") }, errLost},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := lab.New(t)
			var log bytes.Buffer
			o := options(t, &log, l.B)
			o.Places[0].Iface = c.place
			at(t, l.B, addVeth("wan1"))
			f := begin(t, o)
			defer f.Stop()
			c.lose(t, o)
			for range 3 { // it stays so
				if err := f.follow(); err != c.want {
					t.Errorf("%v, want %v", err, c.want)
				}
			}
			if c.want != nil {
				return
			}
			at(t, l.B, addVeth("wan2"))
			theirs(t, o, "wan2")
			at(t, l.B, addVeth("wan3"))
			for range 3 {
				if err := f.follow(); err != nil {
					t.Error(err)
				}
			}
			if got := f.names(); len(got) != 1 || !strings.HasPrefix(got[0], "wan3") {
				t.Errorf("filtered: %v", got)
			}
			if n := strings.Count(log.String(), "another weir"); n != 1 {
				t.Errorf("told of another weir %d times:\n%s", n, &log)
			}
		})
	}
}
