package loader

import (
	"os"
	"path/filepath"
	"testing"

	"weir/bpf"
)

// Connections outlive their process, and move along to memory of another size, as far as they
// fit; memory of another layout is replaced.
func TestConnectionsStay(t *testing.T) {
	d := testPins(t)
	count := func(c *Connections) (n int) {
		t.Helper()
		if err := c.All(func(k Connection, s ConnectionState) error {
			if uint64(k.Proto) != s.Until {
				t.Errorf("%+v has %+v", k, s)
			}
			n++
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	open := func(entries, want int) *Connections {
		t.Helper()
		c, err := d.OpenConnections(entries)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if n := count(c); n != want {
			t.Errorf("%d connections, want %d", n, want)
		}
		return c
	}
	first := open(1024, 0)
	for i := range uint32(100) {
		if err := first.Put(Connection{Proto: i}, ConnectionState{Until: uint64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	keep := func() {
		t.Helper()
		if err := d.KeepConnections(); err != nil {
			t.Fatal(err)
		}
	}
	more := func(proto uint32) {
		t.Helper()
		if err := first.Put(Connection{Proto: proto}, ConnectionState{Until: uint64(proto)}); err != nil {
			t.Fatal(err)
		}
	}
	keep()
	open(1024, 100)
	keep()
	open(4096, 100) // for programs that fail
	more(1000)
	open(1024, 101) // what the former ones go on with
	open(4096, 101)
	more(1001)
	keep()
	open(4096, 102) // also what was remembered until all had changed
	if err := d.ForgetConnections(); err != nil {
		t.Fatal(err)
	}
	open(4096, 0)
	keep()

	path := filepath.Join(string(d), bpf.WeirMapConnections)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	stats, err := NewStats(1)
	if err != nil {
		t.Fatal(err)
	}
	defer stats.Close()
	stats.read(func(k pinnedMaps) { err = k[pinLists].m.Pin(path) })
	if err != nil {
		t.Fatal(err)
	}
	open(1024, 0)
	for range 2 {
		if err := d.ForgetConnections(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := NewConnections(0); err == nil {
		t.Error("no connections are memory")
	}
}
