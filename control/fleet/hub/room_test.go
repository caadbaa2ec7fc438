package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/control/config"
	"weir/control/fleet/wire"
	"weir/tests/lab"
	"weir/tests/wait"
)

// onSmallDisk is the variable with the directory for a disk of the test's own, in a process
// that alone sees it.
const onSmallDisk = "WEIR_TEST_SMALL_DISK"

// Where the hub's disk is full, nodes hear the hub, commands fail and change nothing, and the
// status says why; also after a start. When there is room, everything goes on.
func TestFullDisk(t *testing.T) {
	lab.Root(t)
	dir := os.Getenv(onSmallDisk)
	if dir == "" {
		c := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.v", "-test.timeout=5m")
		c.Env = append(os.Environ(), onSmallDisk+"="+t.TempDir())
		c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if err := unix.Mount("weir", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	f := newFleetIn(t, dir)
	file := filepath.Join(dir, "drop.txt")
	if err := os.WriteFile(file, []byte("192.0.2.1\n192.0.2.2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const more = "rollout: {waves: [{labels: [canary], for: 1m}]}\nlists: {drop: {sources: [{file: %s}], interval: 1s}}\n"
	f.start(fmt.Sprintf(more, file))
	n, c := f.enroll("edge-1")
	live := make(chan wire.Catalog, 1000)
	subscribe := func(c *nats.Conn) {
		t.Helper()
		if _, err := c.Subscribe(wire.DownPrefix+wire.CatalogSubject(), func(m *nats.Msg) {
			if c, err := wire.OpenCatalog(n.PublicKey, m.Data); err == nil {
				live <- c
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	subscribe(c)
	f.change(block("198.51.100.1", "198.51.100.2"))
	w := f.follower(n, c)
	stored := func() wire.Place {
		t.Helper()
		m, err := w.stream.last(wire.CatalogSubject())
		if err != nil {
			t.Fatal(err)
		}
		return m0(wire.OpenCatalog(n.PublicKey, m.Data)).Place
	}
	ballast := filepath.Join(dir, "ballast")
	fill := func() {
		t.Helper()
		b, err := os.OpenFile(ballast, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		for _, n := range []int{1 << 20, 4096, 1} {
			for err == nil {
				_, err = b.Write(make([]byte, n))
			}
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			err = nil
		}
	}
	const says = "the disk of the hub is full: "
	full := func() {
		t.Helper()
		for _, change := range []api.Change{block("198.51.100.3"), {Action: api.Block, Entries: []string{"198.51.100.1"}, Remove: true}} {
			if _, err := f.hub.Change(t.Context(), change); err == nil || !strings.HasPrefix(err.Error(), says) {
				t.Errorf("change: %v", err)
			}
		}
		if _, err := f.hub.Roll(t.Context(), api.FleetRoll{Do: api.RollForward, List: "drop"}); err == nil || !strings.HasPrefix(err.Error(), says) {
			t.Errorf("rollout: %v", err)
		}
		before := stored()
		for len(live) > 0 {
			<-live
		}
		var last wire.Catalog
		for range 3 {
			var c wire.Catalog
			select {
			case c = <-live:
			case <-time.After(wait.Patience):
				t.Fatal("no catalog comes")
			}
			if !before.Before(c.Place) || !last.Place.Before(c.Place) {
				t.Errorf("catalog %v after %v, stored is %v", c.Place, last.Place, before)
			}
			last = c
		}
		if stored() != before {
			t.Errorf("catalog %v is stored", stored())
		}
		wait.Until(t, func() error {
			s, err := f.hub.Fleet(t.Context())
			if err == nil && (len(s.Problems) == 0 || !strings.HasPrefix(s.Problems[0], says) || !s.Connected || s.Time.Sub(*s.Catalog) > time.Duration(f.hub.conf().MaxAge)) {
				err = fmt.Errorf("%+v", s)
			}
			for _, l := range s.Lists {
				if err == nil && l.Published != l.Version {
					err = fmt.Errorf("%+v", l)
				}
			}
			return err
		})
		s, _, _, err := w.read(config.FleetBlock)
		if err == nil {
			err = wantEntries(s, "198.51.100.1", "198.51.100.2")
		}
		if err != nil {
			t.Error(err)
		}
	}
	fill()
	full()
	f.stop()
	c.Close() // it would connect again, and have each catalog a second time
	fill()
	f.start(fmt.Sprintf(more, file))
	c, err := f.connect(n)
	if err != nil {
		t.Fatal(err)
	}
	subscribe(c)
	w = f.follower(n, c)
	full()
	if err := os.Remove(ballast); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	f.change(block("198.51.100.3"))
	wait.Until(t, func() error { // what was refused before is tried again by and by
		s, _, _, err := w.read(config.FleetBlock)
		if err == nil {
			err = wantEntries(s, "198.51.100.1", "198.51.100.2", "198.51.100.3")
		}
		return err
	})
}

// m0 returns the first of two results, the second of which is an error that must not be.
func m0[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
