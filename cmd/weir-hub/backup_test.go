package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/control/api/client"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// backedUp is a hub in a directory.
type backedUp struct {
	t      *testing.T
	dir    string
	config string
	stop   func()
}

func newBackedUp(t *testing.T) *backedUp {
	t.Helper()
	b := &backedUp{t: t, dir: t.TempDir()}
	b.config = filepath.Join(b.dir, "hub.yaml")
	text := fmt.Sprintf("servers: [\"tls://%[1]s\"]\nbroker: {listen: %[1]q}\nkeys: %[2]s/keys\nstate_dir: %[2]s/state\napi: {socket: %[2]s/sock}\nlog: {level: error}\n", lab.FreeAddress(t), b.dir)
	if err := os.WriteFile(b.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *backedUp) file(name string) string { return filepath.Join(b.dir, name) }

// run runs the hub until stop.
func (b *backedUp) run() *client.Client {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		var out bytes.Buffer
		if code := execute(ctx, []string{"run", "--config", b.config}, &out, &out); code != exitOK {
			b.t.Errorf("exit code %d: %s", code, out.String())
		}
	})
	b.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	b.t.Cleanup(b.stop)
	c := client.DialHub(b.file("sock"))
	for deadline := wait.Deadline(); ; time.Sleep(10 * time.Millisecond) {
		s, err := c.Fleet(b.t.Context())
		if err == nil && s.Catalog != nil {
			return c
		}
		if time.Now().After(deadline) {
			b.t.Fatal(err)
		}
	}
}

// entries returns the number of entries in list block.
func (b *backedUp) entries(c *client.Client) int {
	b.t.Helper()
	s, err := c.Fleet(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	for _, l := range s.Lists {
		if l.Name == "block" {
			return l.Entries
		}
	}
	b.t.Fatal("no list block")
	return 0
}

func (b *backedUp) fails(says string, args ...string) {
	b.t.Helper()
	if code, out, log := command(b.t, append(args, "--config", b.config)...); code != exitFailure || !strings.Contains(log, says) {
		b.t.Errorf("%q: exit code %d, want %q\n%s%s", args, code, says, out, log)
	}
}

// A backup of a hub that runs has all that was acknowledged before. The host that it is
// restored on is the fleet's hub.
func TestBackup(t *testing.T) {
	long.Seconds(t)
	b := newBackedUp(t)
	if code, _, log := command(t, "init", b.file("keys")); code != exitOK {
		t.Fatal(log)
	}
	c := b.run()
	if code, _, log := command(t, "enroll", "edge-1", "--config", b.config); code != exitOK {
		t.Fatal(log)
	}
	trial, err := c.EnforceFleet(t.Context(), "block", api.EnforceChange{Off: true, After: 3600})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	var mu sync.Mutex
	acknowledged := 0
	busy.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := c.ChangeFleet(ctx, api.Change{Action: api.Block, Entries: []string{fmt.Sprintf("10.0.%d.%d", i>>8, i&255)}}); err == nil {
				mu.Lock()
				acknowledged++
				mu.Unlock()
			}
		}
	})
	known := func() int { mu.Lock(); defer mu.Unlock(); return acknowledged }
	var least []int
	for i := range 5 {
		for at := known(); known() < at+20; {
			time.Sleep(time.Millisecond)
		}
		least = append(least, known())
		if code, _, log := command(t, "backup", b.file(fmt.Sprintf("%d.tar.gz", i)), "--config", b.config); code != exitOK {
			t.Fatal(log)
		}
	}
	stop()
	busy.Wait()
	most := b.entries(c) + 1 // and one that is recorded, and whose version is about to be made
	b.fails("file exists", "backup", b.file("0.tar.gz"))
	b.fails("has the state of a hub", "restore", b.file("0.tar.gz"))
	b.stop()
	if info, err := os.Stat(b.file("0.tar.gz")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}

	other := newBackedUp(t) // another host
	text, err := os.ReadFile(b.file("4.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{"half": text[:len(text)/2], "none": []byte("none"), "end": text[:len(text)-4]} {
		if err := os.WriteFile(other.file(name), bad, 0o600); err != nil {
			t.Fatal(err)
		}
		other.fails("nothing has changed", "restore", other.file(name))
	}
	for i, want := range least {
		for _, dir := range []string{"keys", "state"} {
			if err := os.RemoveAll(other.file(dir)); err != nil {
				t.Fatal(err)
			}
		}
		code, out, log := command(t, "restore", b.file(fmt.Sprintf("%d.tar.gz", i)), "--config", other.config)
		if code != exitOK || !strings.Contains(out, "revoke again") || !strings.Contains(out, "--user KEY") {
			t.Fatalf("%s%s", out, log)
		}
		c := other.run()
		if n := other.entries(c); n < want || n > most {
			t.Errorf("backup %d: %d entries, want %d to %d", i, n, want, most)
		}
		s, err := c.Fleet(t.Context())
		if err != nil || len(s.Nodes) != 1 || s.Nodes[0].Name != "edge-1" {
			t.Errorf("%+v, %v", s, err)
		}
		if at := slices.IndexFunc(s.Lists, func(l api.FleetList) bool { return l.Name == "block" }); !s.Lists[at].Trial || s.Lists[at].Decision.EnforcedAt.Sub(*trial.Trial.EnforcedAt).Abs() > time.Second {
			t.Errorf("backup %d: the trial of a list is lost: %+v", i, s.Lists[at])
		}
		other.stop()
	}

	// Keys that are there stay, unless they are another fleet's.
	if err := os.RemoveAll(other.file("state")); err != nil {
		t.Fatal(err)
	}
	if code, out, log := command(t, "restore", b.file("0.tar.gz"), "--config", other.config); code != exitOK || !strings.Contains(out, "stay as they were") {
		t.Errorf("%s%s", out, log)
	}
	for _, dir := range []string{"keys", "state"} {
		if err := os.RemoveAll(other.file(dir)); err != nil {
			t.Fatal(err)
		}
	}
	if code, _, log := command(t, "init", other.file("keys")); code != exitOK {
		t.Fatal(log)
	}
	other.fails("keys of another fleet", "restore", b.file("0.tar.gz"))
}

// owner is the user that newOwned's hub runs as.
const owner = 65534

// newOwned returns a hub whose keys and state are another user's than root.
func newOwned(t *testing.T) *backedUp {
	t.Helper()
	lab.Root(t)
	dir, err := os.MkdirTemp("", "weir-hub-") // others may not enter t.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b := &backedUp{t: t, dir: dir, config: filepath.Join(dir, "hub.yaml")}
	text := fmt.Sprintf("servers: [\"tls://h:1\"]\nbroker: {listen: \"127.0.0.1:4222\"}\nkeys: %[1]s/keys\nstate_dir: %[1]s/state\n", dir)
	if err := os.WriteFile(b.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"keys", "state"} {
		if err := errors.Join(os.Mkdir(b.file(name), 0o700), os.Chown(b.file(name), owner, owner)); err != nil {
			t.Fatal(err)
		}
	}
	if err := weirHub("init", b.file("keys")).Run(); err != nil {
		t.Fatal(err)
	}
	return b
}

// root runs a command as root, in a process of its own: it may become another user. It fails, and says why,
// unless says is "".
func (b *backedUp) root(says string, args ...string) {
	b.t.Helper()
	var log strings.Builder
	c := weirHub(append(args, "--config", b.config)...)
	c.Stderr = &log
	if err := c.Run(); (err == nil) != (says == "") || !strings.Contains(log.String(), says) {
		b.t.Errorf("%q: %v, want %q\n%s", args, err, says, log.String())
	}
}

// A backup that fails leaves no file: the next one could not be made. Root writes where the keys' owner
// may not, and reads as that.
func TestBackupFails(t *testing.T) {
	b := newOwned(t)
	if err := os.Mkdir(b.file("out"), 0o700); err != nil {
		t.Fatal(err)
	}
	unreadable, to := b.file("state/audit.log"), b.file("out/hub.tar.gz")
	if err := os.WriteFile(unreadable, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	backup := func(says string) {
		t.Helper()
		b.root(says, "backup", to)
	}
	for range 2 {
		backup("audit.log: permission denied")
		if left, err := os.ReadDir(b.file("out")); err != nil || len(left) > 0 {
			t.Fatalf("left behind: %v, %v", left, err)
		}
	}
	if err := os.Chown(unreadable, owner, owner); err != nil {
		t.Fatal(err)
	}
	backup("")
	info, err := os.Stat(to)
	if err != nil || info.Mode() != 0o600 || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("%+v, %v", info, err)
	}
	backup("file exists")
}

// A state_dir that is a volume of its own has a directory which only root may read.
func TestBackupOfVolume(t *testing.T) {
	b := newOwned(t)
	if err := os.Mkdir(b.file("state/lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(b.file("state/audit.log"), []byte("{}\n"), 0o600), os.Chown(b.file("state/audit.log"), owner, owner)); err != nil {
		t.Fatal(err)
	}
	b.root("", "backup", b.file("hub.tar.gz"))
	b.root("has the state of a hub", "restore", b.file("hub.tar.gz"))
	if err := os.Remove(b.file("state/audit.log")); err != nil {
		t.Fatal(err)
	}
	b.root("", "restore", b.file("hub.tar.gz"))
	if _, err := os.Stat(b.file("state/audit.log")); err != nil {
		t.Error(err)
	}
}

// Of keys and state, the directory that restore makes gets the owner of the one that is there.
func TestRestoreKeepsOwner(t *testing.T) {
	b := newOwned(t)
	if err := errors.Join(os.WriteFile(b.file("state/audit.log"), []byte("{}\n"), 0o600), os.Chown(b.file("state/audit.log"), owner, owner)); err != nil {
		t.Fatal(err)
	}
	b.root("", "backup", b.file("hub.tar.gz"))
	for _, gone := range []string{"keys", "state"} {
		if err := errors.Join(os.RemoveAll(b.file(gone)), os.RemoveAll(b.file("state/audit.log"))); err != nil {
			t.Fatal(err)
		}
		b.root("", "restore", b.file("hub.tar.gz"))
		for _, name := range []string{"keys", "keys/fleet.key", "state", "state/audit.log"} {
			info, err := os.Stat(b.file(name))
			if err != nil {
				t.Fatal(err)
			}
			if uid := info.Sys().(*syscall.Stat_t).Uid; uid != owner {
				t.Errorf("without %s: %s is of user %d, want %d", gone, name, uid, owner)
			}
		}
	}
}

// A restore that was interrupted goes on with the next one, and until then no hub starts.
func TestRestoreAgain(t *testing.T) {
	lab.Root(t)
	b := newBackedUp(t)
	if code, _, log := command(t, "init", b.file("keys")); code != exitOK {
		t.Fatal(log)
	}
	b.run()
	b.stop()
	good := b.file("hub.tar.gz")
	if code, _, log := command(t, "backup", good, "--config", b.config); code != exitOK {
		t.Fatal(log)
	}
	// The rename of state/broker fails, for a directory of that name is there and not empty.
	bad, err := os.Create(b.file("bad.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(bad)
	w := tar.NewWriter(z)
	if err := errors.Join(add(w, aboutFile, []byte(`{"weir_hub_backup": 1}`)), addAll(w, b.file("keys"), keysPrefix), add(w, "state/a", nil),
		add(w, "state/broker/b", nil), w.Close(), z.Close(), bad.Close()); err != nil {
		t.Fatal(err)
	}

	other := newBackedUp(t)
	if err := errors.Join(os.Mkdir(other.file("keys"), 0o700), os.MkdirAll(other.file("state/broker/jetstream"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", other.file("keys"), "tmpfs", 0, "mode=0700,nr_inodes=6"); err != nil { // with too little room
		t.Fatal(err)
	}
	defer unix.Unmount(other.file("keys"), 0)
	other.fails("no space left", "restore", good)
	other.fails("run weir-hub restore again", "run")
	if err := unix.Mount("", other.file("keys"), "", unix.MS_REMOUNT, "nr_inodes=100"); err != nil {
		t.Fatal(err)
	}
	other.fails("broker", "restore", bad.Name())
	if _, err := os.Stat(other.file("state/a")); err != nil {
		t.Fatalf("the restore has moved nothing of the state: %v", err)
	}
	other.fails("run weir-hub restore again", "run")
	if code, _, log := command(t, "init", other.file("keys")); code != exitFailure || !strings.Contains(log, "run weir-hub restore again") {
		t.Errorf("init: exit code %d, %s", code, log)
	}
	if code, out, log := command(t, "restore", good, "--config", other.config); code != exitOK || !strings.Contains(out, "revoke again") {
		t.Fatalf("exit code %d\n%s%s", code, out, log)
	}
	if _, err := os.Stat(other.file("state/a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what the interrupted restore has put there stays: %v", err)
	}
	other.run()
	other.stop()

	// With the keys there, what marks the state alone has the hub not start.
	if err := os.RemoveAll(other.file("state")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(other.file("state/broker/jetstream"), 0o700); err != nil {
		t.Fatal(err)
	}
	other.fails("broker", "restore", bad.Name())
	other.fails("run weir-hub restore again", "run")
	other.fails("run weir-hub restore again", "backup", other.file("half.tar.gz"))
	if code, _, log := command(t, "restore", good, "--config", other.config); code != exitOK {
		t.Fatal(log)
	}
	other.run()
}
