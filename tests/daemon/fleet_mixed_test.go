package daemon

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weir/control/config"
	"weir/tests/binary"
	"weir/tests/long"
)

// A fleet is upgraded under traffic, first the hub and then the nodes, and one node goes back.
// Each time the hub goes on from older copies of its state, or of its machine: all nodes have
// its contents in time, and nothing that is listed in both histories passes.
func TestFleetMixed(t *testing.T) {
	long.Only(t, "builds a former version")
	t.Parallel()
	former := func(command string) string {
		t.Helper()
		path, err := binary.Former(command, binary.BeforeSeals)
		if errors.Is(err, binary.ErrNoHistory) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	old := release{name: "weir-former", version: "dev", path: former("weir")}
	f := newFleetOf(t, former("weir-hub"), old, 2, 20_000)
	next := 0
	change := func() netip.Addr {
		t.Helper()
		src := address(commandBlock, next)
		next++
		if c, err := f.change(t.Context(), config.FleetBlock, false, src); err != nil || !c.Published {
			t.Fatalf("%+v, %v", c, err)
		}
		return src
	}
	both := change()
	f.converge()
	for _, n := range f.nodes {
		n.load.list(froms(both)...)
		n.load.run()
	}
	f.kill()
	var err error
	if f.path, err = hubBinary(); err != nil {
		t.Fatal(err)
	}
	f.start()
	f.converge()
	f.kill()
	backup := f.file("backup")
	copyTo := func(from, to string) {
		t.Helper()
		if err := errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(from))); err != nil {
			t.Fatal(err)
		}
	}
	copyTo(f.file("hub"), backup)
	f.start()
	restored := func(what string, machine bool) {
		t.Helper()
		var lost, made []netip.Addr
		for range 5 {
			lost = append(lost, change())
		}
		f.converge()
		f.kill()
		copyTo(backup, f.file("hub"))
		if !machine {
			if err := os.RemoveAll(filepath.Join(f.file("hub"), "broker")); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		f.start()
		for range 3 {
			made = append(made, change())
		}
		lists := f.converge()
		took := time.Since(began)
		t.Logf("%s, machine %v: all nodes have the hub's contents %v after its start", what, machine, took.Round(time.Millisecond))
		for _, l := range lists {
			if l.Name == config.FleetBlock && l.Entries != 1+len(made) {
				t.Errorf("%s: list %s has %d entries, want %d", what, l.Name, l.Entries, 1+len(made))
			}
		}
		for _, n := range f.nodes {
			n.load.expect(what+": "+n.name+": an entry of the lost history", true, froms(lost...)...)
			n.load.expect(what+": "+n.name+": an entry of the new history", false, froms(made...)...)
		}
	}
	turn := func(n *fleetNode, to release) {
		t.Helper()
		n.d.kill()
		n.d = n.begin(to)
		n.d.ready()
		f.converge()
	}
	for _, machine := range []bool{true, false} {
		restored("only the hub is upgraded", machine)
	}
	turn(f.nodes[0], releases[0])
	for _, machine := range []bool{true, false} {
		restored("one node is upgraded", machine)
	}
	turn(f.nodes[1], releases[0])
	restored("all are upgraded", true)
	turn(f.nodes[0], old)
	change()
	f.converge()
	for _, n := range f.nodes {
		n.load.finish()
	}
}
