package attach

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/bpf" //nolint:depguard // the places of constants, for a test only
	"weir/control/engine"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/control/stage/connections"
	"weir/control/stage/loop"
	"weir/control/stage/tracker"
	"weir/filter/hash"
	"weir/filter/icarus"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/bpffs"
	"weir/loader/hooks"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/pins"
	"weir/tests/wait"
)

// parse returns the contents of a list.
func parse(t *testing.T, text string) *list.Set {
	t.Helper()
	e, _, err := listfile.Parse("list", strings.NewReader(text), listfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return e.Set()
}

// options returns how a manager attaches to the far ends of wires.
func options(t *testing.T, log *bytes.Buffer, ends ...lab.End) (Config, []Target) {
	t.Helper()
	dir, err := os.MkdirTemp("/sys/fs/bpf", "weir-test-")
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Pins: loader.Pins(dir), Log: slog.New(slog.NewTextHandler(log, nil))}
	t.Cleanup(func() {
		if _, err := DetachAll(c.Pins); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	var targets []Target
	for _, e := range ends {
		targets = append(targets, Target{Target: netif.Target{Netns: e.Netns, Iface: e.Iface}})
	}
	return c, targets
}

// buildShared builds an engine of one list whose programs share connections, and its metadata.
func buildShared(t *testing.T, c Config) (*engine.Generation, Metadata) {
	t.Helper()
	known, err := c.Pins.OpenShared(connections.Maps(1024))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { known.Close() })
	g, d := buildKernel(t, "10.0.0.1\n", engine.Config{Shared: known}, 1)
	d.Replies = &connections.RepliesAbout{}
	return g, d
}

// buildKernel builds an engine of one list, and its metadata.
func buildKernel(t *testing.T, text string, c engine.Config, lists int) (*engine.Generation, Metadata) {
	t.Helper()
	contents := parse(t, text)
	var rules []engine.List
	var all []List
	for n := range lists {
		l := engine.List{Name: fmt.Sprintf("list-%d", n), Contents: contents}
		rules = append(rules, l)
		all = append(all, List{Name: l.Name, Entries: contents.Len()})
	}
	g, err := engine.Build(rules, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	m := Describe(g, c, all)
	m.PID, m.Version, m.Since, m.Loaded = os.Getpid(), "test", time.Now(), time.Now()
	return g, m
}

// configFor returns the configuration of an engine for targets.
func configFor(targets []Target) engine.Config {
	return engine.Config{TC: slices.ContainsFunc(targets, func(t Target) bool { return t.XDP == hooks.TC })}
}

func startManager(t *testing.T, c Config, targets []Target) (*Manager, error) {
	t.Helper()
	g, d := buildKernel(t, "10.0.0.1\n", configFor(targets), 1)
	m := NewManager(c)
	return m, m.Start(g, d, targets)
}

func begin(t *testing.T, c Config, targets []Target) *Manager {
	t.Helper()
	m, err := startManager(t, c, targets)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// roll replaces the engine by the next one.
func (m *Manager) roll(t *testing.T, g *engine.Generation, d Metadata, targets []Target) error {
	r, err := m.Prepare(g, d, targets)
	if err != nil {
		return err
	}
	return r.Commit()
}

// reload replaces the engine by one of other entries.
func (m *Manager) reload(t *testing.T, text string) error {
	g, d := buildKernel(t, text, engine.Config{}, 1)
	return m.roll(t, g, d, nil)
}

// reconfigure replaces the engine, and the targets.
func (m *Manager) reconfigure(t *testing.T, targets []Target) error {
	g, d := buildKernel(t, "10.0.0.1\n", configFor(targets), 1)
	return m.roll(t, g, d, targets)
}

// states returns the state of all interfaces, by name of the namespace.
func states(t *testing.T, pins loader.Pins) map[string]Status {
	t.Helper()
	all, err := ReadStatus(pins)
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]Status{}
	for _, i := range all {
		states[i.Netns] = i
	}
	return states
}

// Where a manager cannot attach everywhere, an interface that was filtered before
// stays so, even if it is unknown by what.
func TestStartUndone(t *testing.T) {
	for _, about := range []string{`{}`, `"what is this"`} {
		l := lab.New(t)
		var log bytes.Buffer
		c, targets := options(t, &log, l.B)
		g, err := loader.NewGeneration(loader.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		a, err := pins.Attach(c.Pins, targets[0].Target, hooks.Native, []byte(about), g.Load)
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
		targets = append(targets, Target{Target: netif.Target{Netns: l.A.Netns, Iface: l.A.Iface}},
			Target{Target: netif.Target{Netns: l.B.Netns, Iface: "later"}},
			Target{Target: netif.Target{Netns: l.B.Netns, Iface: "nosuch"}, Required: true})
		if _, err := startManager(t, c, targets); !errors.Is(err, netif.ErrNoInterface) {
			t.Fatal(err)
		}
		all := states(t, c.Pins)
		if i, ok := all[l.B.Netns]; len(all) != 1 || !ok || i.Severed || i.Since.IsZero() {
			t.Errorf("attached: %+v", all)
		}
		if got := strings.Contains(log.String(), "metadata of the attachment"); got != (about != `{}`) {
			t.Errorf("%s: log:\n%s", about, &log)
		}
	}
}

// Counters under other reasons are not taken over.
func TestOtherReasons(t *testing.T) {
	const packets = 1000 // the interface gets a few of its own
	var log bytes.Buffer
	c, targets := options(t, &log, lab.New(t).B)
	g, err := loader.NewGeneration(loader.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	a, err := pins.Attach(c.Pins, targets[0].Target, hooks.Native, []byte(`{"counted_reasons": ["rain", "snow"]}`), func(s *loader.Stats) (*loader.Program, error) {
		p, err := g.Load(s)
		for i := 0; err == nil && i < packets; i++ {
			_, err = p.Test(make([]byte, 60)) // to be counted
		}
		return p, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if i, err := statusOf(a); err != nil || max(i.Reasons["rain"].Packets, i.Reasons["snow"].Packets) < packets {
		t.Errorf("%+v, %v", i, err)
	}
	a.Close()
	m := begin(t, c, targets)
	if all := m.Stats(false)[0].Reasons(nil); all[verdict.NotIP].Packets >= packets || all[verdict.Clean].Packets >= packets {
		t.Errorf("counters %v", all)
	}
	if err := m.Stop(false); err != nil {
		t.Error(err)
	}
}

// A manager that another replaces, while it is about to reload or to stop, leaves
// that one's program alone.
func TestReplaced(t *testing.T) {
	for name, do := range map[string]func(*testing.T, *Manager) error{
		"reload": func(t *testing.T, m *Manager) error { return m.reload(t, "10.0.0.1\n") },
		"stop":   func(_ *testing.T, m *Manager) error { return m.Stop(false) },
	} {
		t.Run(name, func(t *testing.T) {
			l := lab.New(t)
			var log bytes.Buffer
			c, targets := options(t, &log, l.B)
			f := begin(t, c, targets)
			dir, err := os.Open(string(c.Pins))
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			done := make(chan error)
			go func() { done <- do(t, f) }()
			time.Sleep(300 * time.Millisecond) // it waits for the lock
			want := replacePinned(t, c.Pins)
			dir.Close()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if i := states(t, c.Pins)[l.B.Netns]; i.ProgramID != want {
				t.Errorf("attached: %+v, want program %d", i, want)
			}
			f.Stop(false)
		})
	}
}

// replacePinned replaces the program of the only attachment, as another process
// does that has the lock, and returns the program's ID.
func replacePinned(t *testing.T, pins loader.Pins) uint32 {
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

// When a rollout fails half way, and cannot be undone, the error says where the
// new lists stay.
func TestRolloutStuck(t *testing.T) {
	for _, stuck := range []bool{false, true} {
		t.Run(fmt.Sprint(stuck), func(t *testing.T) {
			one, two := lab.New(t), lab.New(t)
			var log bytes.Buffer
			c, targets := options(t, &log, one.B, two.B)
			m := begin(t, c, targets)
			defer m.Stop(false)
			g, d := buildKernel(t, "10.0.0.2\n", engine.Config{}, 101)
			want, entries := "the old lists stay active: ", 1
			if stuck {
				m.engine.Close() // which then cannot be put back
				want, entries = "the old lists stay active, but on "+targets[0].String()+" the new ones are: ", 101
			}
			if err := m.rollHalf(t, g, d, nil); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("rollout: %v, want %q", err, want)
			}
			if got := states(t, c.Pins)[one.B.Netns].Entries; got != entries {
				t.Errorf("%d entries are described, want %d", got, entries)
			}
		})
	}
}

// A rollout that fails half way leaves no trace in the programs that are put back: they
// have the same edges of a loop domain as before.
func TestRolloutUndone(t *testing.T) {
	one, two := lab.New(t), lab.New(t)
	c, targets := options(t, new(bytes.Buffer), one.B, two.B)
	node, err := icarus.NewNode(1, 0, icarus.Key{}, icarus.Geometry{Size: 64, K: 5, Confirm: 1})
	if err != nil {
		t.Fatal(err)
	}
	var ec engine.Config
	part := &loop.Part{Node: node}
	ec.Parts = []engine.Part{part}
	g, d := buildKernel(t, "10.0.0.1\n", ec, 1)
	m := NewManager(c)
	if err := m.Start(g, d, targets); err != nil {
		t.Fatal(err)
	}
	defer m.Stop(false)
	i := m.interfaces[0]
	program, before := i.ProgramID(), constants(t, i)

	ec.Parts = []engine.Part{&loop.Part{Node: part.Node, Edges: []string{one.B.Iface, two.B.Iface}}}
	spec, err := tracker.Parse("key=src,threshold=1kpps")
	if err != nil {
		t.Fatal(err)
	}
	ec.Parts = append(ec.Parts, &tracker.Part{In: []tracker.Counting{spec.Counting()}})
	ec.Seed = hash.Seed{1}
	next, d := buildKernel(t, "10.0.0.1\n", ec, 1)
	if err := m.rollHalf(t, next, d, targets); err == nil || !strings.Contains(err.Error(), "the old lists stay active: ") {
		t.Fatalf("rollout: %v", err)
	}
	if i.ProgramID() == program {
		t.Fatal("it did not fail half way")
	}
	if !bytes.Equal(constants(t, i), before) {
		t.Error("the program that was put back has other constants")
	}
	if m.engine != g || i.Stats().IsDevice() {
		t.Errorf("the engine is the old one: %v, the interface is an edge: %v", m.engine == g, i.Stats().IsDevice())
	}
}

// The next process counts where the last one did, unless the program of an interface that it does not
// filter goes on counting there: then it takes the penalties over, and counts anew.
func TestTrackersContinue(t *testing.T) {
	one, two := lab.New(t), lab.New(t)
	c, targets := options(t, new(bytes.Buffer), one.B, two.B)
	spec, err := tracker.Parse("key=src,threshold=1kpps,action=block")
	if err != nil {
		t.Fatal(err)
	}
	ec := engine.Config{Parts: []engine.Part{&tracker.Part{In: []tracker.Counting{spec.Counting()}}}, Seed: hash.Seed{1}}
	start := func(targets []Target) (*Manager, *tracker.Memory) {
		t.Helper()
		g, d := buildKernel(t, "10.0.0.1\n", ec, 1)
		m := NewManager(c)
		if err := m.Start(g, d, targets); err != nil {
			t.Fatal(err)
		}
		tr, err := tracker.Open(g, m.interfaces[0].Stats())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tr.Close() })
		return m, tr
	}
	const last = 100 // a word in a bank that no packet touches
	mark := func(tr *tracker.Memory) *uint64 { _, flows := tr.Bank(0, 0, 0); return &flows[len(flows)-last] }
	m, tr := start(targets)
	tr.Penalties[0], *mark(tr) = 7, 8
	m.Stop(true)
	m, tr = start(targets)
	if tr.Penalties[0] != 7 || *mark(tr) != 8 {
		t.Errorf("after a restart, penalty %d, counted %d", tr.Penalties[0], *mark(tr))
	}
	m.Stop(true)
	m, tr = start(targets[:1])
	if tr.Penalties[0] != 7 || *mark(tr) != 0 {
		t.Errorf("beside another interface, penalty %d, counted %d", tr.Penalties[0], *mark(tr))
	}
	m.Stop(true)
	m, tr = start(targets)
	if tr.Penalties[0] != 7 {
		t.Errorf("with both again, penalty %d", tr.Penalties[0])
	}
	both, err := tracker.Open(m.engine, m.interfaces[1].Stats())
	if err != nil {
		t.Fatal(err)
	}
	if both.Place() != tr.Place() {
		t.Error("two interfaces count apart")
	}
	both.Close()
	m.Stop(false)
}

// constants returns those of the program that is attached.
func constants(t *testing.T, h *managedInterface) []byte {
	t.Helper()
	m := mapOf(t, h, ".rodata")
	defer m.Close()
	text, err := m.LookupBytes(uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	spec, err := bpf.LoadWeir()
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range spec.Variables {
		if v.SectionName == ".rodata" && strings.HasSuffix(name, "_entries") { // of memory, which does not shrink
			clear(text[v.Offset:][:len(v.Value)])
		}
	}
	return text
}

// mapOf returns the map of the program that is attached whose name ends so.
func mapOf(t *testing.T, i *managedInterface, suffix string) *ebpf.Map {
	t.Helper()
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(i.ProgramID()))
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
		if info, err := m.Info(); err == nil && strings.HasSuffix(info.Name, suffix) {
			return m
		}
		m.Close()
	}
	t.Fatalf("the program has no map %s", suffix)
	return nil
}

// rollHalf is roll, but the second interface refuses its program.
func (m *Manager) rollHalf(t *testing.T, g *engine.Generation, d Metadata, targets []Target) error {
	t.Helper()
	r, err := m.Prepare(g, d, targets)
	if err != nil {
		t.Fatal(err)
	}
	other, err := loader.NewStats(0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	i := m.interfaces[1]
	r.programs[i].Close()
	if r.programs[i], err = g.Load(other); err != nil {
		t.Fatal(err)
	}
	return r.Commit()
}

// Targets that cannot be looked for are refused before anything has changed.
func TestBadTargets(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	c, targets := options(t, &log, l.B)
	m := begin(t, c, targets)
	defer m.Stop(false)
	before := m.engine
	next := append(slices.Clone(targets), Target{Target: netif.Target{Netns: l.B.Netns, Iface: "wan["}})
	if err := m.reconfigure(t, next); err == nil || !strings.Contains(err.Error(), `"wan["`) {
		t.Errorf("reconfigure: %v", err)
	}
	if m.engine != before || len(m.targets) != 1 {
		t.Errorf("targets %v", m.targets)
	}

	// Those that cannot be looked for later, for example without a privilege, are logged once.
	m.targets = next
	for range 3 {
		if err := m.Follow(); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(log.String(), "wan["); n != 1 {
		t.Errorf("logged %d times:\n%s", n, &log)
	}
}

// otherDaemon starts a process that is taken for another daemon of weir, and returns its PID.
func otherDaemon(t *testing.T) int {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "weir")
	if err := os.Symlink(sleep, path); err != nil {
		t.Fatal(err)
	}
	daemon := &exec.Cmd{Path: path, Args: []string{"sleep", "600"}}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		daemon.Process.Kill()
		daemon.Wait()
	})
	return daemon.Process.Pid
}

// An interface that is named again by a reload is filtered by the present lists, where what an
// ended daemon has left there filters on.
func TestLeftFiltering(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	c, targets := options(t, &log, l.B)
	at(t, l.B, addVeth("wan1"))
	both := append(slices.Clone(targets), Target{Target: netif.Target{Netns: l.B.Netns, Iface: "wan1"}})
	first := begin(t, c, both)
	left := first.interfaces[1].ProgramID()
	first.leave(t)

	m := begin(t, c, targets)
	defer m.Stop(false)
	if err := errors.Join(m.Follow(), m.reconfigure(t, both), m.Follow()); err != nil {
		t.Fatal(err)
	}
	if got := m.Names(); len(got) != 2 || got[1] != both[1].String() {
		t.Fatalf("filtered: %v:\n%s", got, &log)
	}
	i := m.interfaces[1]
	d, err := MetadataOf(i.Attachment)
	if now := i.ProgramID(); now == 0 || now == left || err != nil || d.PID != os.Getpid() {
		t.Errorf("program %d, which was %d before, of process %d: %v", now, left, d.PID, err)
	}
	if strings.Contains(log.String(), errTaken.Error()) {
		t.Errorf("log:\n%s", &log)
	}
}

// Where a glob may yet cover other interfaces, detaching the last one does not end
// the manager; another daemon that takes it over does. One that is another's from
// the start is logged once.
func TestLost(t *testing.T) {
	type env struct {
		Config
		targets []Target
	}
	theirs := func(t *testing.T, o env, iface string) {
		t.Helper()
		g, err := loader.NewGeneration(loader.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		d := Metadata{PID: otherDaemon(t)}
		about, err := d.Encode()
		if err != nil {
			t.Fatal(err)
		}
		a, err := pins.Attach(o.Pins, netif.Target{Netns: o.targets[0].Netns, Iface: iface}, hooks.Native, about, g.Load)
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
	}
	for _, c := range []struct {
		name, place string
		lose        func(*testing.T, env)
		want        error
	}{
		{"detached", "wan*", func(t *testing.T, o env) {
			if _, err := DetachAll(o.Pins); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"the only name detached", "wan1", func(t *testing.T, o env) {
			if _, err := DetachAll(o.Pins); err != nil {
				t.Fatal(err)
			}
		}, ErrNothingLeft},
		{"taken over", "wan*", func(t *testing.T, o env) { theirs(t, o, "wan1") }, ErrNothingLeft},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := lab.New(t)
			var log bytes.Buffer
			config, targets := options(t, &log, l.B)
			o := env{config, targets}
			targets[0].Iface = c.place
			at(t, l.B, addVeth("wan1"))
			f := begin(t, config, targets)
			defer f.Stop(false)
			// Interfaces that come are left to Follow.
			inode, err := targets[0].Namespace()
			if err != nil {
				t.Fatal(err)
			}
			f.hotplug.watches[targets[0].Netns] = watch{inode, func() {}}
			c.lose(t, o)
			for range 3 { // it stays so
				if err := f.Follow(); !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
			}
			if c.want != nil {
				return
			}
			at(t, l.B, addVeth("wan2"))
			theirs(t, o, "wan2")
			at(t, l.B, addVeth("wan3"))
			f.hotplug.reports.Add(1)
			for range 3 {
				if err := f.Follow(); err != nil {
					t.Error(err)
				}
			}
			if got := f.Names(); len(got) != 1 || !strings.HasPrefix(got[0], "wan3") {
				t.Errorf("filtered: %v", got)
			}
			if n := strings.Count(log.String(), "another daemon"); n != 1 {
				t.Errorf("logged another daemon %d times:\n%s", n, &log)
			}
		})
	}
}

// A daemon whose programs share no maps removes those of before only where no other daemon's
// programs read them.
func TestForgetShared(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	config, targets := options(t, &log, l.B)
	known := func(want bool) {
		t.Helper()
		files, err := filepath.Glob(string(config.Pins) + "/*connect*")
		if err != nil || len(files) > 0 != want {
			t.Fatalf("pinned: %q, %v", files, err)
		}
	}
	g, d := buildShared(t, config)
	m := NewManager(config)
	if err := errors.Join(m.Start(g, d, targets), config.Pins.KeepShared(g.Kernel()), ForgetShared(config.Pins)); err != nil {
		t.Fatal(err)
	}
	known(true)
	d.Replies = nil
	if err := errors.Join(m.roll(t, g, d, targets), ForgetShared(config.Pins)); err != nil {
		t.Fatal(err)
	}
	known(false)
	m.Stop(false)
}

// The maps that all programs share stay pinned when the last interface goes and a daemon waits for
// another one: one that is killed then leaves them to the next.
func TestSharedStayPinned(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	config, _ := options(t, &log)
	g, d := buildShared(t, config)
	at(t, l.B, addVeth("wan0"))
	m := NewManager(config)
	targets := []Target{{Target: netif.Target{Netns: l.B.Netns, Iface: "wan*"}}}
	if err := errors.Join(m.Start(g, d, targets), config.Pins.KeepShared(g.Kernel()), m.Follow()); err != nil {
		t.Fatal(err)
	}
	defer m.Stop(false)
	shared := func() []string {
		t.Helper()
		files, err := filepath.Glob(string(config.Pins) + "/*connect*")
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	want := shared()
	if len(want) == 0 || len(pinned(t, config)) != 1 {
		t.Fatalf("pinned: %q, %q", want, pinned(t, config))
	}
	at(t, l.B, with("wan0", netlink.LinkDel))
	wait.For(t, "the interface to be given up", func() bool {
		for _, i := range m.interfaces {
			if !i.gone.IsZero() {
				i.gone = time.Now().Add(-goneFor)
			}
		}
		m.hotplug.reports.Add(1)
		if err := m.Follow(); err != nil {
			t.Fatal(err)
		}
		return len(m.interfaces) == 0
	})
	if got := shared(); len(pinned(t, config)) > 0 || !slices.Equal(got, want) {
		t.Errorf("pinned: %q, %q\n%s", got, pinned(t, config), &log)
	}

	// As if another process attached or detached just when the last interface was given up.
	unlock, err := bpffs.LockDir(string(config.Pins), unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	for _, pin := range want {
		if err := os.Remove(pin); err != nil {
			t.Error(err)
		}
	}
	m.unshared = true
	err = m.Follow()
	unlock()
	if got := shared(); len(got) > 0 || err != nil {
		t.Errorf("without the lock: pinned: %q, %v", got, err)
	}
	if err := m.Follow(); err != nil || !slices.Equal(shared(), want) {
		t.Errorf("with the lock: pinned: %q, %v\n%s", shared(), err, &log)
	}
	if m.unshared {
		t.Error("it looks for the pins without end")
	}
}

// Where TC has filters instead of links, an interface that is gone, or whose filter somebody
// has deleted, is filtered again: no daemon has taken it over. Who detaches it is heeded.
func TestFilterGone(t *testing.T) {
	t.Setenv("WEIR_TEST_CLSACT", "1")
	l := lab.New(t)
	var log bytes.Buffer
	config, targets := options(t, &log, l.B)
	targets[0].XDP = hooks.TC
	g, d := buildKernel(t, "10.0.0.1\n", engine.Config{TC: true}, 1)
	m := NewManager(config)
	if err := m.Start(g, d, targets); err != nil {
		t.Fatal(err)
	}
	defer m.Stop(false)
	follow := func(want Condition) {
		t.Helper()
		for deadline := wait.Deadline(); ; time.Sleep(time.Millisecond) {
			if err := m.Follow(); err != nil {
				t.Fatalf("%v:\n%s", err, &log)
			}
			if all := m.Interfaces(); len(all) == 1 && all[0].Condition == want {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("%+v, want it to be %s:\n%s", all, want, &log)
			}
		}
	}
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(args[0], append([]string{"-n", l.B.Netns}, args[1:]...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	follow(Filtered)
	ip("ip", "link", "del", l.B.Iface)
	follow(Gone)
	l.Wire(t)
	follow(Filtered)
	ip("tc", "qdisc", "del", "dev", l.B.Iface, "clsact")
	follow(Filtered)
	if _, err := DetachAll(config.Pins); err != nil {
		t.Fatal(err)
	}
	if err := m.Follow(); !errors.Is(err, ErrNothingLeft) || strings.Contains(log.String(), errTaken.Error()) || !strings.Contains(log.String(), errDetached.Error()) {
		t.Errorf("%v:\n%s", err, &log)
	}
}
