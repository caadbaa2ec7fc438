package hub

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	fleetnode "weir/control/fleet/node"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// cpuGroup is a group of processes with a share of a core.
type cpuGroup string

// newCPUGroup makes one that may take some milliseconds of a tenth of a second.
func newCPUGroup(t *testing.T, milliseconds int) cpuGroup {
	t.Helper()
	lab.Root(t)
	const root = "/sys/fs/cgroup/cpu"
	if _, err := os.Stat(filepath.Join(root, "cpu.cfs_quota_us")); err != nil {
		t.Skip("needs cgroup v1 with the controller cpu at " + root)
	}
	g := cpuGroup(filepath.Join(root, fmt.Sprintf("weir-test-%d", os.Getpid())))
	if err := os.Mkdir(string(g), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		wait.For(t, "the end of the group's processes", func() bool { return os.Remove(string(g)) == nil })
	})
	g.write(t, "cpu.cfs_period_us", "100000")
	g.write(t, "cpu.cfs_quota_us", strconv.Itoa(milliseconds*1000))
	return g
}

func (g cpuGroup) write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(string(g), file), []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

// cpuOf returns the time of the processor that a process has taken.
func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var ticks int
	for _, at := range []int{11, 12} { // utime and stime, in hundredths of a second
		n, err := strconv.Atoi(f[at])
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// TestStarved kills a hub to which 400 nodes are connected, and holds the next one at 7 % of a core: all
// come back.
func TestStarved(t *testing.T) {
	long.Only(t, "takes minutes")
	const nodes, share, most = 400, 7, 90 * time.Second
	f := newFleet(t)
	f.reserve()
	group := newCPUGroup(t, share)
	hub := &process{t: t, test: "TestProcess", env: []string{processDir + "=" + f.dir, "WEIR_TEST_HUB_LISTEN=" + f.listen, "GOGC=40"}}
	var length, done atomic.Int64
	length.Store(1 << 40)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer func() { stop(); running.Wait() }()
	var all []*fleetnode.Node
	for i := range nodes {
		e, err := f.authority.Enroll(fmt.Sprintf("edge-%d", i), nil, []string{"tls://" + f.listen})
		if err != nil {
			t.Fatal(err)
		}
		n, err := fleetnode.Open(fleetnode.Config{Enrollment: e, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
		running.Go(func() { _ = n.Run(ctx, &tally{node: n, length: &length, done: &done}) })
	}
	connected := func() (count int) {
		for _, n := range all {
			if n.Age().Connected {
				count++
			}
		}
		return count
	}
	current := func() error {
		if n := connected(); n < nodes {
			return fmt.Errorf("%d of %d nodes are connected", n, nodes)
		}
		s, err := f.client().Fleet(t.Context())
		if err != nil {
			return err
		}
		var count int
		for _, n := range s.Nodes {
			if n.State == api.NodeCurrent {
				count++
			}
		}
		if count < nodes {
			return fmt.Errorf("%d of %d nodes are current: %q", count, nodes, s.Problems)
		}
		return nil
	}
	hub.start()
	f.ready()
	wait.Until(t, current)
	hub.kill()
	wait.For(t, "the end of all connections", func() bool { return connected() == 0 })

	began := time.Now()
	hub.start()
	group.write(t, "cgroup.procs", strconv.Itoa(hub.command.Process.Pid))
	for {
		time.Sleep(time.Second)
		err := current()
		cpu := cpuOf(t, hub.command.Process.Pid)
		if err == nil {
			t.Logf("all %d nodes are current after %v, and %v of the processor", nodes, time.Since(began).Round(time.Millisecond), cpu)
			if cpu > most*share/100 {
				t.Errorf("that took %v of the processor, want %v at most", cpu, most*share/100)
			}
			break
		}
		if time.Since(began).Round(time.Second)%10 == 0 {
			t.Logf("after %v, and %v of the processor: %v", time.Since(began).Round(time.Second), cpu, err)
		}
		if time.Since(began) > wait.Patience {
			t.Fatal(err)
		}
	}
}

// Commands at once become one version, or a few, and all are acknowledged.
func TestBatch(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.start("")
	first, err := f.hub.Change(t.Context(), block("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	const commands = 32
	var all sync.WaitGroup
	var last atomic.Uint64
	for i := range commands {
		all.Go(func() {
			c, err := f.hub.Change(t.Context(), block(fmt.Sprintf("10.0.0.%d", i)))
			if err != nil || !c.Published || c.Added != 1 {
				t.Errorf("command %d: %+v, %v", i, c, err)
			}
			for v := last.Load(); v < c.Version.Version && !last.CompareAndSwap(v, c.Version.Version); v = last.Load() {
			}
		})
	}
	all.Wait()
	n := last.Load() - first.Version.Version
	t.Logf("%d commands at once have made %d versions", commands, n)
	if n == 0 || n > commands/4 {
		t.Errorf("%d versions, want one, or a few where the disk is slow", n)
	}
	if err := f.hub.Do(t.Context(), func() error {
		for i := range commands {
			if err := hasAll(f.hub.lists.get(config.FleetBlock).history.Contents(), []string{fmt.Sprintf("10.0.0.%d", i)}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
