// Package queue stores changes of entries that were given while no daemon could make them,
// for the next one: each in a file of its own below the state directory, on disk before the
// command returns.
//
// Changes are made in the order of the files' names, which is that in which they were given,
// and a file is removed once its change is recorded elsewhere. A daemon that is killed in
// between leaves the file, and the next one makes the change again before any other: since
// it makes all that follow it again too, in their order, the result is the same.
//
// Who may write to the state directory may change the journal of entries, too: files are
// trusted as far as their owner, but bounded in number and size.
package queue

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/control/clock"
	"weir/control/durable"
)

// Limits of the queue.
const (
	MaxChanges = 10_000   // files
	MaxBytes   = 64 << 20 // of all changes
	maxBytes   = 17 << 20 // of a file: a change has 16 MiB at most as a request
	maxNames   = 2 * MaxChanges
	maxSet     = 16        // files that are set aside
	maxAge     = time.Hour // of a file that is being written: its writer has ended
)

// version is the version of the format of files.
const version = 1

const (
	directory = "queue"
	suffix    = ".json"
	partial   = ".new" // of a file that is being written
	aside     = ".bad" // of a file that could not be read, and is kept for somebody to look at
)

// ErrFull is wrapped by errors for a change for which there is no room.
var ErrFull = errors.New("too many changes wait for the daemon")

// Command is a change with its caller and the time when it was given, or a note of something
// that was done without the daemon.
type Command struct {
	Time   time.Time
	By     api.Caller
	Change api.Change
	Note   *api.AuditRecord // nil: there is a change
}

// file is a command as it is stored.
type file struct {
	Version int       `json:"version"`
	Time    time.Time `json:"time"`
	moment
	Remove bool       `json:"remove,omitempty"`
	By     api.Caller `json:"by"`

	Change *api.Change      `json:"change,omitempty"`
	Note   *api.AuditRecord `json:"note,omitempty"`
}

// moment is when a command was given, by clocks that cannot be set.
type moment struct {
	Boot   string        `json:"boot"`
	Ran    time.Duration `json:"ran_ns"`       // of the host since its boot
	Synced bool          `json:"synchronized"` // the wall clock
}

// momentOf returns the moment of a time that this process has read.
func momentOf(t time.Time) moment {
	h := clock.This()
	return moment{Boot: h.Boot(), Ran: h.Ran() - time.Since(t), Synced: h.Synchronized()}
}

// wall returns the time of a moment by the wall clock as it is set now, where that differs from t, which is how
// it was set then. After another boot, how long ago that is remains unknown unless both are right: the command was
// given now.
func (m moment) wall(t time.Time) time.Time {
	wall := time.Now()
	now := momentOf(wall)
	if m.Boot == "" || m.Boot != now.Boot {
		if m.Synced && now.Synced {
			return t
		}
		return wall.Round(0)
	}
	if by := wall.Add(m.Ran - now.Ran).Round(0); by.Sub(t).Abs() >= time.Second {
		return by
	}
	return t
}

// Queue is the queue below a state directory. The zero Queue has none: it is empty, and
// nothing can be added.
type Queue struct {
	state string
	owner int // whose state directory it must be; -1: anybody's
}

// In returns the queue below a state directory, "" for none.
func In(state string) Queue { return Queue{state, -1} }

// Of is In where the directory was named by a user, and must be that user's own: root would
// write wherever another one likes otherwise.
func Of(state string, owner int) Queue { return Queue{state, owner} }

// StateDir returns the state directory, "" for none.
func (q Queue) StateDir() string { return q.state }

// open opens the directory of the queue, and creates it if that is wanted. Its files are to
// be used by the path that is returned, which stays that of the directory whatever its name
// becomes.
func (q Queue) open(create bool) (dir *os.File, path string, owner int, err error) {
	state, err := os.OpenFile(q.state, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", 0, err
	}
	defer state.Close()
	if owner, err = ownerOf(state); err != nil {
		return nil, "", 0, err
	}
	if q.owner >= 0 && owner != q.owner {
		return nil, "", 0, fmt.Errorf("%s belongs to user %d, not %d", q.state, owner, q.owner)
	}
	inside := filepath.Join(pathOf(state), directory)
	dir, err = os.OpenFile(inside, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if create && errors.Is(err, fs.ErrNotExist) {
		if err = durable.MkdirAll(inside); err == nil {
			err = give(inside, owner)
		}
		if err == nil {
			dir, err = os.OpenFile(inside, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		}
	}
	if err != nil {
		return nil, "", 0, naming(err, filepath.Join(q.state, directory))
	}
	return dir, pathOf(dir), owner, nil
}

// pathOf returns a path of an open directory.
func pathOf(dir *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) }

// naming replaces the path in an error, which names a descriptor.
func naming(err error, path string) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: at.Op, Path: path, Err: at.Err}
	}
	return err
}

func ownerOf(f *os.File) (int, error) {
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return 0, err
	}
	return int(s.Uid), nil
}

// give makes a user the owner of a file that this process has created: root creates, and the
// daemon, which may be another user, reads and removes.
func give(path string, owner int) error {
	if owner == os.Geteuid() {
		return nil
	}
	return os.Lchown(path, owner, -1)
}

// Add adds a change, durably. It is safe to call in several processes.
func (q Queue) Add(c Command) error {
	if q.state == "" {
		return errors.New("there is no state directory")
	}
	f := file{Version: version, Time: c.Time.UTC(), moment: momentOf(c.Time), By: c.By, Note: c.Note}
	if c.Note == nil {
		if err := c.Change.Check(); err != nil {
			return err
		}
		f.Remove, f.Change = c.Change.Remove, &c.Change
	}
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	dir, path, owner, err := q.open(true)
	if err != nil {
		return err
	}
	defer dir.Close()
	waiting, size, err := load(dir, path, true)
	switch {
	case err != nil:
		return err
	case len(waiting) >= MaxChanges || size+int64(len(text)) > MaxBytes || len(text) > maxBytes:
		return fmt.Errorf("%w: %d with %d bytes in %s", ErrFull, len(waiting), size, filepath.Join(q.state, directory))
	}
	name, err := nameOf(c.Time, waiting)
	if err != nil {
		return err
	}
	// O_EXCL follows no link that is there already.
	to, err := durable.Open(filepath.Join(path, name+partial), os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW)
	if err != nil {
		return naming(err, filepath.Join(q.state, directory, name))
	}
	if err := give(to.Path(), owner); err != nil {
		to.Discard()
		return naming(err, filepath.Join(q.state, directory, name))
	}
	_, _ = to.Write(text) // Replace returns the error
	err = errors.Join(to.Replace(filepath.Join(path, name)), to.Close())
	return naming(err, filepath.Join(q.state, directory, name))
}

// nameOf returns the name of a new file, behind all others, whatever the clock says.
func nameOf(now time.Time, waiting []string) (string, error) {
	at := now.UnixNano()
	if len(waiting) > 0 {
		if last, ok := timeOf(waiting[len(waiting)-1]); ok && last < math.MaxInt64 {
			at = max(at, last+1)
		}
	}
	var unique [8]byte
	if _, err := rand.Read(unique[:]); err != nil {
		return "", err
	}
	return fmt.Sprintf("%019d-%s%s", at, hex.EncodeToString(unique[:]), suffix), nil
}

// timeOf returns the time in the name of a file, in nanoseconds.
func timeOf(name string) (int64, bool) {
	digits, _, ok := strings.Cut(name, "-")
	if !ok || len(digits) != 19 {
		return 0, false
	}
	at, err := strconv.ParseInt(digits, 10, 64)
	return at, err == nil && at >= 0
}

// load returns the names of the changes in a directory, in their order, and their bytes. It
// removes files that writers have left, if that is wanted.
func load(dir *os.File, path string, clean bool) (waiting []string, size int64, err error) {
	all, err := dir.ReadDir(maxNames)
	if err != nil && err != io.EOF {
		return nil, 0, err
	}
	for _, e := range all {
		change, left := strings.HasSuffix(e.Name(), suffix), strings.HasSuffix(e.Name(), partial)
		if !change && !left {
			continue
		}
		at := filepath.Join(path, e.Name())
		info, err := os.Lstat(at) // e.Info would take the path that the directory was opened by, which is gone
		switch {
		case change:
			waiting = append(waiting, e.Name())
			// What is no regular file, or too large for a change, is set aside without being read.
			if err == nil && info.Mode().IsRegular() && info.Size() <= maxBytes {
				size += info.Size()
			}
		case clean && err == nil && time.Since(info.ModTime()) > maxAge:
			_ = os.Remove(at) // or the next one does
		}
	}
	slices.Sort(waiting)
	return waiting, size, nil
}

// Waiting returns the names of the changes that wait, in their order.
func (q Queue) Waiting() ([]string, error) {
	if q.state == "" {
		return nil, nil
	}
	dir, path, _, err := q.open(false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, _, err := load(dir, path, false)
	return names, err
}

// Bad is an error of a file that is no command: it will not become one.
type Bad struct{ Err error }

func (e *Bad) Error() string { return e.Err.Error() }
func (e *Bad) Unwrap() error { return e.Err }

// Read reads a change that waits. It returns a [*Bad] for what no command has written.
func (q Queue) Read(name string) (Command, error) {
	dir, path, owner, err := q.open(false)
	if err != nil {
		return Command{}, err
	}
	defer dir.Close()
	at := filepath.Join(q.state, directory, name)
	f, err := os.OpenFile(filepath.Join(path, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return Command{}, &Bad{fmt.Errorf("%s is a link", at)}
	}
	if err != nil {
		return Command{}, naming(err, at)
	}
	defer f.Close()
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return Command{}, err
	}
	switch {
	case s.Mode&unix.S_IFMT != unix.S_IFREG:
		return Command{}, &Bad{fmt.Errorf("%s is not a regular file", at)}
	case s.Uid != 0 && int(s.Uid) != owner && int(s.Uid) != os.Geteuid():
		return Command{}, &Bad{fmt.Errorf("%s belongs to user %d", at, s.Uid)}
	case s.Size > maxBytes:
		return Command{}, &Bad{fmt.Errorf("%s has %d bytes: the most is %d", at, s.Size, maxBytes)}
	}
	text, err := io.ReadAll(io.LimitReader(f, maxBytes))
	if err != nil {
		return Command{}, naming(err, at)
	}
	c, err := parse(text)
	if err != nil {
		return Command{}, &Bad{fmt.Errorf("%s: %w", at, err)}
	}
	return c, nil
}

// parse parses what Add has written.
func parse(text []byte) (Command, error) {
	var of struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &of); err != nil {
		return Command{}, err
	}
	if of.Version != version {
		return Command{}, fmt.Errorf("version %d of the format, where version %d is known", of.Version, version)
	}
	var f file
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return Command{}, err
	}
	switch {
	case f.Time.IsZero():
		return Command{}, errors.New("the time is missing")
	case (f.Change == nil) == (f.Note == nil):
		return Command{}, errors.New("neither a change nor a note, or both")
	}
	f.Time = f.moment.wall(f.Time)
	if f.Note != nil {
		return Command{Time: f.Time, By: f.By, Note: f.Note}, nil
	}
	c := Command{Time: f.Time, By: f.By, Change: *f.Change}
	c.Change.Remove, c.Change.Given, c.Change.UID, c.Change.Client = f.Remove, f.Time, f.By.UID, f.By.Client
	return c, c.Change.Check()
}

// Done removes a change that was made, or refused.
func (q Queue) Done(name string) error {
	dir, path, _, err := q.open(false)
	if err != nil {
		return err
	}
	defer dir.Close()
	return naming(durable.Remove(filepath.Join(path, name)), filepath.Join(q.state, directory, name))
}

// SetAside renames a file that cannot be read, so that somebody can look at it. It removes
// the oldest of those where there are many.
func (q Queue) SetAside(name string) error {
	dir, path, _, err := q.open(false)
	if err != nil {
		return err
	}
	defer dir.Close()
	all, err := dir.ReadDir(maxNames)
	if err != nil && err != io.EOF {
		return err
	}
	var before []string
	for _, e := range all {
		if strings.HasSuffix(e.Name(), aside) {
			before = append(before, e.Name())
		}
	}
	slices.Sort(before)
	for len(before) >= maxSet {
		if err := os.RemoveAll(filepath.Join(path, before[0])); err != nil {
			return err
		}
		before = before[1:]
	}
	from := filepath.Join(path, name)
	return naming(durable.Rename(from, from+aside), filepath.Join(q.state, directory, name))
}
