// Package journal stores the entries that operators add manually, so that none
// is lost: a change is on disk before the command that made it returns.
//
// A journal is a file to which changes are appended, each in a record with a
// checksum. When more than half of it is superseded, it is rewritten with the
// remaining entries. After a crash:
//
//   - The last batch may be present in part, or its last record be torn. It was
//     never acknowledged. A torn record is cut off, with a warning.
//   - A record before intact ones can only be damaged by the disk or by another
//     program. It is skipped, and the offset and number of lost bytes are logged;
//     all intact records count, before and after it, also where bytes are missing or
//     were inserted. The damaged bytes stay until the journal is rewritten.
//   - More at the end than a torn record is kept in a file with the suffix ".torn".
//
// Entries expire at times of the wall clock, also while weir is not running. If
// the clock is stepped forward, entries expire early; if it is stepped back,
// late. An entry that was removed as expired does not come back.
package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/durable"
	"weir/filter/key"
)

var (
	// ErrLocked means that another process has the journal open.
	ErrLocked = errors.New("another daemon has it open")
	// ErrForeign means that the file is not a journal, or that nothing in it is
	// intact.
	ErrForeign = errors.New("not a journal of weir, or nothing in it is intact: move it out of the way")
	// ErrReadOnly means that the journal was opened read-only.
	ErrReadOnly = errors.New("the journal could not be opened for writing, restart weir once that is fixed")
)

// Limits of an entry's fields, in bytes.
const (
	MaxListLen   = 255
	MaxReasonLen = 512
)

// minGarbage is the number of superseded bytes from which the journal is
// rewritten: about twenty thousand records, so that a small journal is not
// rewritten over and over.
const minGarbage = 1 << 20

// Entry is a manual entry of a list. List and Key identify it.
type Entry struct {
	List    string // 1 to MaxListLen bytes
	Allow   bool   // false: block
	Key     key.Key
	Added   time.Time // with millisecond resolution
	Expires time.Time // the zero time: never
	Reason  string    // at most MaxReasonLen bytes
	UID     uint32    // of the user who added it
}

// Change adds an entry, replacing the one with its list and key, or removes
// that one if it exists.
type Change struct {
	Remove bool
	Entry
}

// Journal is an open journal, which only this process may write to. It is safe
// for concurrent use.
type Journal struct {
	path string
	log  *slog.Logger
	lost int64 // set by Open
	lock *os.File

	writing   sync.Mutex // guards the fields below, and the file
	file      file       // nil after Close, or if readOnly
	readOnly  error      // the reason, nil if writable
	size      int64      // of the intact part: the offset of the next record
	shift     int64      // added to the offset in its checksum: bytes are missing
	torn      bool       // there may be more bytes in the file
	moved     bool       // the directory entry may not be durable yet
	rewriteAt int64      // the size from which a rewrite is tried again

	memory  sync.RWMutex // guards entries; taken after writing
	entries entries
}

// file is the part of *os.File that a journal uses.
type file interface {
	io.WriterAt
	Truncate(size int64) error
	Sync() error
	Close() error
}

// Open reads or creates the journal at path. It returns [ErrLocked] or
// [ErrForeign], wrapped, or fails if the file cannot be read. A journal that
// can be read but not written is opened with a warning; Apply then fails.
//
// Without a path the journal is in memory only.
func Open(path string, log *slog.Logger) (*Journal, error) {
	if path == "" {
		return &Journal{log: log}, nil
	}
	j := &Journal{path: path, log: log.With("journal", path)}
	if err := j.open(); err != nil {
		j.Close()
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	return j, nil
}

func (j *Journal) open() error {
	lock, err := acquire(lockOf(j.path))
	if errors.Is(err, ErrLocked) {
		return err
	}
	j.lock, j.readOnly = lock, err
	length, err := j.load()
	if err != nil {
		return err
	}
	if j.readOnly == nil {
		j.readOnly = j.openFile(length)
	}
	if j.readOnly != nil {
		j.log.Warn("journal is read-only, entries can be neither added nor removed: " + j.readOnly.Error())
	}
	return nil
}

// lockOf returns the path of the file that the process with the journal open locks.
func lockOf(path string) string { return path + ".lock" }

// acquire locks a file exclusively until it is closed. It is a separate file,
// since rewriting replaces the journal itself.
func acquire(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// load reads the file and returns its length, 0 if it does not exist.
func (j *Journal) load() (int64, error) {
	b, err := os.ReadFile(j.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	var newest time.Time
	damaged, end, shift, err := scan(b, func(c Change) {
		if c.Added.After(newest) {
			newest = c.Added
		}
		j.entries.apply(c)
	})
	if err != nil {
		return 0, err
	}
	before := 0
	for _, d := range damaged {
		missing := d.shift - before
		before = d.shift
		j.log.Error("journal damaged: these bytes are lost, all records before and after them count",
			"offset", d.from, "bytes", d.to-d.from, "missing_bytes", missing)
		j.lost += int64(d.to - d.from + max(missing, 0))
	}
	if j.shift = int64(shift); len(b)-end > frameLen+maxBodyLen {
		if err := os.WriteFile(j.path+".torn", b[end:], 0o600); err != nil {
			j.log.Error("what is cut off could not be kept: " + err.Error())
		}
	}
	if end < len(b) {
		j.log.Warn("journal ends with a torn record, as after a crash: cut off",
			"offset", end, "bytes", len(b)-end)
	}
	if now := time.Now(); newest.After(now) {
		j.log.Warn("clock is earlier than the last entry: entries will expire late",
			"now", now, "last", newest)
	}
	j.size = int64(end)
	return int64(len(b)), nil
}

// openFile opens the file, of the length that was read, for writing.
func (j *Journal) openFile(length int64) error {
	if j.size == 0 { // not even a complete magic
		return j.rewrite()
	}
	f, err := os.OpenFile(j.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	j.file, j.torn = f, length > j.size
	return j.mend()
}

// mend restores the file and its directory after an error.
func (j *Journal) mend() error {
	if j.torn {
		if err := j.file.Truncate(j.size); err != nil {
			return err
		}
		if err := j.file.Sync(); err != nil {
			return err
		}
		j.torn = false
	}
	if j.moved {
		if err := durable.SyncDirectory(filepath.Dir(j.path)); err != nil {
			return err
		}
		j.moved = false
	}
	return nil
}

// Apply makes changes in order. If it returns nil they are durable; if it
// fails, none of them has been made. It writes and syncs once, whatever the
// number of changes. After a crash during Apply, any number of the first
// changes may be present.
func (j *Journal) Apply(batch []Change) error {
	j.writing.Lock()
	defer j.writing.Unlock()
	if err := j.record(batch); err != nil {
		return fmt.Errorf("journal %s: nothing recorded: %w", j.path, err)
	}
	j.memory.Lock()
	for _, c := range batch {
		j.entries.apply(c)
	}
	j.memory.Unlock()
	j.tidy()
	return nil
}

// record appends changes to the file.
func (j *Journal) record(batch []Change) error {
	switch {
	case j.path == "":
		for i, c := range batch {
			if _, err := appendRecord(nil, 0, c); err != nil { // checks the same limits
				return fmt.Errorf("change %d of %d: %w", i+1, len(batch), err)
			}
		}
		return nil
	case j.readOnly != nil:
		return fmt.Errorf("%w: %w", ErrReadOnly, j.readOnly)
	case j.file == nil:
		return fs.ErrClosed
	}
	var b []byte
	for i, c := range batch {
		var err error
		if b, err = appendRecord(b, j.size+j.shift, c); err != nil {
			return fmt.Errorf("change %d of %d: %w", i+1, len(batch), err)
		}
	}
	if len(b) == 0 {
		return nil
	}
	if err := j.mend(); err != nil {
		return err
	}
	j.torn = true // until everything is written
	_, err := j.file.WriteAt(b, j.size)
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		if bad := j.mend(); bad != nil {
			err = fmt.Errorf("%w; undoing the write failed too, the changes may reappear after a restart: %w", err, bad)
		}
		return err
	}
	j.torn = false
	j.size += int64(len(b))
	return nil
}

// tidy rewrites the journal if enough of it is superseded. If that fails, the
// old one continues to grow, and changes are still accepted.
func (j *Journal) tidy() {
	if j.path == "" {
		return
	}
	garbage := j.size - j.entries.size
	if garbage <= max(j.entries.size, minGarbage) || j.size < j.rewriteAt {
		return
	}
	if err := j.rewrite(); err != nil {
		j.rewriteAt = j.size + minGarbage
		j.log.Warn("journal cannot be rewritten and keeps growing: "+err.Error(), "bytes", j.size)
	}
}

// rewrite replaces the file with a journal of the present entries. Until the
// directory is synced, a crash may bring back the old one, which has the same
// entries; syncing is left to the next change.
func (j *Journal) rewrite() (err error) {
	temp := j.path + ".new" // left over after a crash, and then overwritten
	f, size, err := j.writeTo(temp)
	if err == nil {
		err = os.Rename(temp, j.path)
	}
	if err != nil {
		if f != nil {
			f.Close()
			os.Remove(temp)
		}
		return err
	}
	if j.file != nil {
		j.file.Close() // no longer needed: an error does not matter
	}
	j.file, j.size, j.shift, j.torn, j.moved = f, size, 0, false, true
	return nil
}

// writeTo writes the present entries to a new file, durably.
func (j *Journal) writeTo(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, 0, err
	}
	const most = 1 << 20 // bytes per write
	b, size := []byte(magic), int64(0)
	flush := func() error {
		n, err := f.Write(b)
		b, size = b[:0], size+int64(n)
		return err
	}
	for e := range j.entries.all() {
		if b, err = appendRecord(b, size, Change{Entry: e}); err == nil && len(b) >= most {
			err = flush()
		}
		if err != nil {
			return f, 0, err
		}
	}
	if err := flush(); err != nil {
		return f, 0, err
	}
	return f, size, f.Sync()
}

// Entries iterates over all entries in no particular order, including those
// that have expired but were not removed yet. Apply blocks until the loop ends,
// and must not be called in it.
func (j *Journal) Entries() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		j.memory.RLock()
		defer j.memory.RUnlock()
		j.entries.all()(yield)
	}
}

// Get returns a list's entry for a key.
func (j *Journal) Get(list string, k key.Key) (Entry, bool) {
	j.memory.RLock()
	defer j.memory.RUnlock()
	return j.entries.get(list, k)
}

// Len returns the number of entries.
func (j *Journal) Len() int {
	j.memory.RLock()
	defer j.memory.RUnlock()
	return j.entries.n
}

// Expired returns the changes that remove the entries that have expired by now,
// in no particular order. The caller must apply them without undoing changes
// made in between.
func (j *Journal) Expired(now time.Time) []Change {
	j.memory.RLock()
	defer j.memory.RUnlock()
	var expired []Change
	j.entries.due.until(millis(now), 0, func(e *entry) {
		expired = append(expired, Change{Remove: true, Entry: e.entry()})
	})
	return expired
}

// Lost returns the number of damaged bytes that Open found before intact
// records. If it is above zero, entries may be missing, and removed ones may be
// back.
func (j *Journal) Lost() int64 { return j.lost }

// Exclusive reports whether no other process can have the journal open.
func (j *Journal) Exclusive() bool { return j.lock != nil }

// Close closes the journal and releases its lock.
func (j *Journal) Close() error {
	j.writing.Lock()
	defer j.writing.Unlock()
	var err error
	if j.file != nil {
		err = j.file.Close()
		j.file = nil
	}
	if j.lock != nil {
		err = errors.Join(err, j.lock.Close())
		j.lock = nil
	}
	return err
}

// Read returns the entries of the journal at path without opening it, even
// while another process writes to it: those of some moment between call and
// return. If parts are damaged, it returns all other entries and an error.
func Read(path string) ([]Entry, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	var es entries
	damaged, _, _, err := scan(b, es.apply)
	if err != nil {
		return nil, fmt.Errorf("read journal %s: %w", path, err)
	}
	all := make([]Entry, 0, es.n)
	for e := range es.all() {
		all = append(all, e)
	}
	for _, d := range damaged {
		err = errors.Join(err, fmt.Errorf("read journal %s: offset %d: %d bytes are damaged and lost",
			path, d.from, d.to-d.from))
	}
	return all, err
}
