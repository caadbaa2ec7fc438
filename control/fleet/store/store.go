// Package store keeps the versions of a fleet's lists on disk. It is the truth: what
// a broker has can be made from it anew, byte for byte.
//
// A list has a base, which is a signed snapshot of one version, and a log of the
// signed deltas since then, each with its length and checksum. A version exists as
// soon as its delta is on disk; only then may it be published. After a crash the last
// delta may be torn. It was never published, and is cut off.
//
// Versions are numbered from 1 within an epoch. Where history is lost, or another has
// been published, [Store.NewEpoch] begins a new epoch with the contents there are.
// Catalogs are numbered by the clock, so that a store that is an older copy of itself does
// not count them again.
package store

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/durable"
	"weir/control/fleet/wire"
)

// ErrLocked means that another process has the store open.
var ErrLocked = errors.New("another hub has it open")

// reserve is for how long numbers of catalogs are reserved in advance, so that not every one
// is written to disk.
const reserve = 5 * time.Minute

// Store is an open store. Its methods must not be called concurrently.
type Store struct {
	// Now returns the time; it is [time.Now], but in tests.
	Now func() time.Time

	dir   string
	key   ed25519.PrivateKey
	lock  *os.File
	state state
	last  uint64                     // catalog
	used  atomic.Pointer[wire.Place] // of catalogs, at most
	first atomic.Uint64              // as state.First
	isNew bool
	lists map[string]*List
}

type state struct {
	Epoch    uint64          `json:"epoch"`
	Reserved uint64          `json:"catalogs"` // numbers below it may have been used
	Extra    json.RawMessage `json:"extra,omitempty"`

	// First is the epoch in which the store began empty. Who has something of an epoch before has
	// it from a store that was lost. 0: that is not known, or was said.
	First uint64 `json:"first,omitempty"`

	// Claim is larger than those of other hubs with the same keys, which this one has taken over from.
	Claim uint64 `json:"claim,omitempty"`
}

// Open opens or creates a store in a directory.
func Open(dir string, key ed25519.PrivateKey) (*Store, error) {
	s := &Store{Now: time.Now, dir: dir, key: key, lists: make(map[string]*List)}
	if err := s.open(); err != nil {
		s.Close()
		return nil, fmt.Errorf("store %s: %w", dir, err)
	}
	return s, nil
}

func (s *Store) open() (err error) {
	if err := durable.MkdirAll(s.dir); err != nil {
		return err
	}
	if s.lock, err = os.OpenFile(filepath.Join(s.dir, "lock"), os.O_RDONLY|os.O_CREATE, 0o600); err != nil {
		return err
	}
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return ErrLocked
		}
		return err
	}
	text, err := os.ReadFile(s.statePath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.state.Epoch = uint64(s.Now().Unix()) // above that of any store before
		s.state.First, s.isNew = s.state.Epoch, true
		s.first.Store(s.state.First)
		s.note()
		return s.save()
	case err != nil:
		return err
	}
	err = json.Unmarshal(text, &s.state)
	if err == nil && s.state.Epoch == 0 {
		err = errors.New("it has no epoch")
	}
	if err != nil {
		return fmt.Errorf("%s is damaged: %w: move the store out of the way, and the hub begins a new epoch", s.statePath(), err)
	}
	s.last = s.state.Reserved
	s.first.Store(s.state.First)
	s.note()
	return nil
}

// IsNew reports whether [Open] has created the store.
func (s *Store) IsNew() bool { return s.isNew }

// First returns the epoch in which the store began empty, 0 if that is not known or [Store.Said]
// was called. It is safe for concurrent use.
func (s *Store) First() uint64 { return s.first.Load() }

// Said notes, durably, that the loss of a store before this one was said.
func (s *Store) Said() error {
	err := s.change(func(to *state) { to.First = 0 })
	s.first.Store(s.state.First)
	return err
}

// Claim returns the claim of the last [Store.TakeOver], 0 if there was none.
func (s *Store) Claim() uint64 { return s.state.Claim }

// TakeOver notes a claim, durably.
func (s *Store) TakeOver(claim uint64) error { return s.change(func(to *state) { to.Claim = claim }) }

// note notes which catalogs may have been published.
func (s *Store) note() { s.used.Store(&wire.Place{Epoch: s.state.Epoch, Version: s.LastCatalog()}) }

// Used returns the place that no catalog has exceeded, and that the next one exceeds: the time,
// unless the last one has a later one. It is safe for concurrent use.
func (s *Store) Used() wire.Place {
	used := *s.used.Load()
	used.Version = max(used.Version, uint64(max(0, s.Now().UnixMilli())))
	return used
}

func (s *Store) statePath() string { return filepath.Join(s.dir, "state.json") }

func (s *Store) save() error {
	text, err := json.Marshal(s.state)
	if err != nil {
		return err
	}
	return durable.WriteFile(s.statePath(), append(text, '\n'))
}

// change changes the state, durably or not at all.
func (s *Store) change(fn func(to *state)) error {
	before := s.state
	fn(&s.state)
	err := s.save()
	if err != nil {
		s.state = before
	}
	return err
}

// Epoch returns the current epoch.
func (s *Store) Epoch() uint64 { return s.state.Epoch }

// Extra returns what SetExtra has stored.
func (s *Store) Extra(v any) error {
	if s.state.Extra == nil {
		return nil
	}
	return json.Unmarshal(s.state.Extra, v)
}

// SetExtra stores a value durably.
func (s *Store) SetExtra(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if bytes.Equal(text, s.state.Extra) {
		return nil // also on a full disk
	}
	return s.change(func(to *state) { to.Extra = text })
}

// NextCatalog returns the number of the next catalog, which no catalog had before: the time,
// in milliseconds, unless the last one has a later one.
func (s *Store) NextCatalog() (wire.Place, error) {
	next := max(s.last+1, uint64(max(0, s.Now().UnixMilli())))
	if next >= s.state.Reserved {
		// On a full disk nodes are assured all the same. Numbers may come again after a
		// restart then, until the clock has passed them, or a node reports a later one:
		// a new epoch begins.
		err := s.change(func(to *state) { to.Reserved = next + uint64(reserve.Milliseconds()) })
		if err != nil && !durable.Full(err) {
			return wire.Place{}, err
		}
	}
	s.last = next
	s.note()
	return wire.Place{Epoch: s.state.Epoch, Version: next}, nil
}

// NewEpoch begins an epoch after another one. Each list goes on with its contents as
// version 1. An error may be that of lists that stay in their epoch, as on a full disk,
// while the new one has begun: [Store.Enter] has them follow.
func (s *Store) NewEpoch(after uint64) error {
	if err := s.change(func(to *state) { to.Epoch, to.First = max(to.Epoch, after, uint64(s.Now().Unix())-1)+1, 0 }); err != nil {
		return err
	}
	s.first.Store(0)
	defer s.note() // after the lists: what is compared with both is then of the epoch before
	var errs []error
	for _, l := range s.lists {
		_, err := l.enter(s.state.Epoch)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Enter has an open list enter the epoch, if it has not, and reports whether it had not.
func (s *Store) Enter(name string) (entered bool, err error) {
	l := s.lists[name]
	if l == nil {
		return false, nil
	}
	return l.enter(s.state.Epoch)
}

// List opens the history of a list, or begins one with version 1, which is empty. It
// reports whether the history there was is damaged, and could not be read: the list
// then begins a new epoch. On a full disk it may be of an epoch before: [Store.Enter].
func (s *Store) List(name string) (l *List, damaged error, err error) {
	if l := s.lists[name]; l != nil {
		return l, nil, nil
	}
	if name == "" || strings.ContainsAny(name, "/\x00") || name[0] == '.' {
		return nil, nil, fmt.Errorf("list %q cannot be the name of a directory", name)
	}
	l = &List{name: name, dir: filepath.Join(s.dir, "lists", name), key: s.key}
	if err := durable.MkdirAll(l.dir); err != nil {
		return nil, nil, err
	}
	switch err := l.open(); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		damaged = fmt.Errorf("history of list %s: %w", name, err)
		l.close()
		l.reset()
		if err := s.NewEpoch(0); err != nil {
			return nil, damaged, err
		}
	case l.place.Epoch > s.state.Epoch:
		damaged = fmt.Errorf("history of list %s is of epoch %d, and the store of %d", name, l.place.Epoch, s.state.Epoch)
		if err := s.NewEpoch(l.place.Epoch); err != nil {
			l.close()
			return nil, damaged, err
		}
	}
	if l.place.Epoch < s.state.Epoch { // it is new, or a crash came in between
		// On a full disk, one that has a history can wait.
		if _, err := l.enter(s.state.Epoch); err != nil && (l.log == nil || !durable.Full(err)) {
			l.close()
			return nil, damaged, err
		}
	}
	s.lists[name] = l
	return l, damaged, nil
}

// Release closes the history of a list, which can be opened again.
func (s *Store) Release(name string) {
	if l := s.lists[name]; l != nil {
		l.close()
		delete(s.lists, name)
	}
}

// Close closes the store.
func (s *Store) Close() {
	for _, l := range s.lists {
		l.close()
	}
	if s.lock != nil {
		s.lock.Close()
	}
}

// LastCatalog returns the number that no catalog has exceeded.
func (s *Store) LastCatalog() uint64 { return max(s.last, s.state.Reserved) }
