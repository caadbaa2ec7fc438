package authority

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nkeys"
	"golang.org/x/sys/unix"

	"weir/control/durable"
	"weir/control/fleet/enrollment"
)

// kind says how nodes, or sites, are recorded: each in a file below a directory.
type kind[T any] struct {
	what, dir string
	check     func(name string) error
	name      func(T) string
}

var (
	nodes = kind[Member]{"node", nodesDir, enrollment.CheckName, func(m Member) string { return m.Name }}
	sites = kind[Site]{"site", sitesDir, enrollment.CheckSite, func(s Site) string { return s.Name }}
)

func path[T any](a *Authority, k kind[T], name string) string {
	return filepath.Join(a.dir, k.dir, name+".json")
}

// read fails with [fs.ErrNotExist] where there is none of the name.
func read[T any](a *Authority, k kind[T], name string) (m T, err error) {
	at := path(a, k, name)
	text, err := os.ReadFile(at)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%s: %w", at, err)
	}
	if k.name(m) != name {
		return m, fmt.Errorf("%s: it is of %s %q", at, k.what, k.name(m))
	}
	return m, nil
}

// all returns all, in the order of their names.
func all[T any](a *Authority, k kind[T]) (some []T, err error) {
	files, err := os.ReadDir(filepath.Join(a.dir, k.dir))
	if err != nil && (k.dir == nodesDir || !errors.Is(err, fs.ErrNotExist)) {
		return nil, err
	}
	for _, f := range files {
		if name, ok := strings.CutSuffix(f.Name(), ".json"); ok {
			m, err := read(a, k, name)
			if err != nil {
				return nil, err
			}
			some = append(some, m)
		}
	}
	return some, nil
}

func record[T any](a *Authority, k kind[T], m T) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = durable.MkdirAll(filepath.Join(a.dir, k.dir))
	}
	if err != nil {
		return err
	}
	return durable.WriteFile(path(a, k, k.name(m)), append(text, '\n'))
}

// change changes the record of one that was enrolled.
func change[T any](a *Authority, k kind[T], name string, fn func(*T) error) error {
	if err := k.check(name); err != nil {
		return err
	}
	unlock, err := a.lock()
	if err != nil {
		return err
	}
	defer unlock()
	m, err := read(a, k, name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no %s %q was enrolled", k.what, name)
	}
	if err == nil {
		err = fn(&m)
	}
	if err != nil {
		return err
	}
	return record(a, k, m)
}

// newUser makes the key of a user, in the form of NATS.
func newUser() (public, seed string, err error) {
	kp, err := nkeys.CreateUser()
	if err != nil {
		return "", "", err
	}
	if public, err = kp.PublicKey(); err != nil {
		return "", "", err
	}
	secret, err := kp.Seed()
	return public, string(secret), err
}

// lock waits until no other command changes the members. Of two commands at once for one node, the
// second would overwrite the record of the first, whose credentials could never be revoked. The
// directory itself is locked: that takes no right to write in it, and leaves no file.
func (a *Authority) lock() (unlock func(), err error) {
	dir, err := os.Open(a.dir)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(dir.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = dir.Close() // nothing was written
		return nil, &os.PathError{Op: "lock", Path: a.dir, Err: err}
	}
	return func() { _ = dir.Close() }, nil
}
