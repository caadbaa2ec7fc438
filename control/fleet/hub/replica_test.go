package hub

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// Where one of the three servers of a cluster ends, stands still, or has no room on its disk, commands go on, and the
// status names the server until it is there again.
func TestReplicaIsMissing(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	f := newFleet(t)
	hosts := []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}
	last := hosts[2]
	disk := filepath.Join(f.dir, "state", last)
	if err := os.MkdirAll(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("weir", disk, "tmpfs", 0, "size=16m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	urls, servers := f.cluster(hosts)
	f.external(urls)
	problems := func() []string {
		return slices.DeleteFunc(f.problems(), func(p string) bool { return !strings.Contains(p, "replica") })
	}
	number := 0
	command := func() error {
		number++
		c, err := f.hub.Change(t.Context(), block(fmt.Sprintf("10.0.%d.%d", number>>8, number&255)))
		if err == nil && !c.Published {
			err = errors.New("a command is not published")
		}
		return err
	}
	whole := func() {
		t.Helper()
		wait.Until(t, func() error {
			if err := command(); err != nil {
				return err
			}
			if p := problems(); len(p) > 0 {
				return fmt.Errorf("problems of replicas: %q", p)
			}
			return nil
		})
	}
	wait.Until(t, command)
	whole()
	filling := filepath.Join(disk, "filling")
	for _, c := range []struct {
		what       string
		fail, mend func() error
	}{
		{"it was killed", func() error { servers[last].kill(); return nil }, func() error { servers[last].start(); return nil }},
		{"it stands still", func() error { return servers[last].command.Process.Signal(unix.SIGSTOP) }, func() error { return servers[last].command.Process.Signal(unix.SIGCONT) }},
		{"its disk is full", func() error {
			file, err := os.Create(filling)
			if err != nil {
				return err
			}
			defer file.Close()
			for {
				if _, err := file.Write(make([]byte, 4096)); errors.Is(err, unix.ENOSPC) {
					return nil
				} else if err != nil {
					return err
				}
			}
		}, func() error {
			servers[last].kill()
			defer servers[last].start()
			return os.Remove(filling)
		}},
	} {
		if err := c.fail(); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, func() error {
			if err := command(); err != nil {
				return fmt.Errorf("%s: %w", c.what, err)
			}
			if p := problems(); len(p) != 1 || !strings.Contains(p[0], `"`+last+`"`) {
				return fmt.Errorf("%s: problems of replicas: %q", c.what, p)
			}
			return nil
		})
		t.Logf("%s: %s", c.what, problems())
		if err := c.mend(); err != nil {
			t.Fatal(err)
		}
		whole()
	}
}
