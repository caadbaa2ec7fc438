package bench

import (
	"bufio"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"weir/control/generation"
	"weir/control/list"
	"weir/control/playground"
	"weir/filter/membership"
	"weir/loader"
)

// load measures the way from text to enforcing: a file of addresses and, one
// line in five, prefixes /24 to /31 is read, compiled, loaded and attached to a
// veth pair; and what memory the process and the kernel hold then.
func (r *Report) load(o Options, n int, mode membership.Mode) (err error) {
	o.logf("load: %d lines of text, %v", n, mode)
	dir, err := os.MkdirTemp("", "weir-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "list.txt")
	if err := writeList(path, n); err != nil {
		return err
	}
	p, err := playground.New("weir-bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	before, err := resident()
	if err != nil {
		return err
	}

	began := time.Now()
	entries, _, err := list.Load(path, list.Options{})
	if err != nil {
		return err
	}
	store := generation.NewStore()
	if _, err := store.AddList(generation.List{Name: "bench"}, entries); err != nil {
		return err
	}
	entries = list.Entries{}
	g, err := generation.Build(store, generation.Config{Mode: mode})
	if err != nil {
		return err
	}
	defer g.Close()
	pins := loader.DefaultPins + "-bench"
	a, err := pins.Attach(loader.Target{Netns: p.B.Netns, Iface: p.B.Iface}, loader.Native, nil, g.Load)
	if err != nil {
		return err
	}
	took := time.Since(began)
	defer func() { err = errors.Join(err, a.Detach()) }()

	after, err := resident()
	if err != nil {
		return err
	}
	runtime.KeepAlive(store)
	contender := "weir-" + mode.String()
	perEntry := float64(after-before) / float64(n)
	r.Results = append(r.Results, Result{
		Benchmark: "load", Contender: contender, Entries: n, Seconds: took.Seconds(), BytesEntry: perEntry,
	})
	if n >= 10_000_000 {
		r.atMost(count(n)+" lines to enforcing, "+mode.String()+", seconds", took.Seconds(), 6)
		r.atMost("memory of the process, "+count(n)+", "+mode.String()+", bytes an entry", perEntry, 60)
	}
	return nil
}

// writeList writes n distinct lines.
func writeList(path string, n int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	random := rand.New(rand.NewPCG(5, 6))
	var line []byte
	for i := range n {
		a, bits := address(uint32(i)), 32
		if i%5 == 0 {
			bits = 24 + random.IntN(8)
			a &^= 1<<(32-bits) - 1
		}
		line = line[:0]
		for shift := 24; shift >= 0; shift -= 8 {
			line = strconv.AppendUint(line, uint64(a>>shift&255), 10)
			if shift > 0 {
				line = append(line, '.')
			}
		}
		if bits < 32 {
			line = append(line, '/')
			line = strconv.AppendInt(line, int64(bits), 10)
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return w.Flush()
}

// resident is the memory of the process, in bytes, after what it no longer
// needs has gone back to the system.
func resident() (int, error) {
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			return kb << 10, err
		}
	}
	return 0, errors.New("no VmRSS in /proc/self/status")
}
