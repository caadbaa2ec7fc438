// Package journal keeps the entries that operators add by command, so that
// none is lost: a change is on the disk before the command that asked for it
// returns.
//
// A journal is a file to which changes are appended, each in a record with a
// checksum. When more of it is superseded than not, it is written anew, with
// the entries that are left. What a crash can do to it:
//
//   - The last batch may be there in part, or its last record be torn. Nobody
//     was told that it is durable. What is torn is cut off, with a warning.
//   - A record before intact ones can only be damaged by the disk, or by
//     somebody else. It is skipped, and the log says at which offset how many
//     bytes are lost; all that is intact counts, before and after it. The bytes
//     stay where they are until the journal is written anew.
//
// Entries expire at times of the wall clock, which go on while no weir runs. A
// clock that is stepped forward ends entries early, one that is stepped back
// late; what has been removed as expired does not come back.
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

	"weir/filter/key"
)

var (
	// ErrLocked says that another process has the journal open.
	ErrLocked = errors.New("another weir has it open: stop that first")
	// ErrForeign says that a file is no journal, or nothing of it is intact.
	ErrForeign = errors.New("not a journal of weir, or nothing in it is intact: move it out of the way")
	// ErrReadOnly says that no change can be recorded.
	ErrReadOnly = errors.New("the journal could not be opened for writing, restart weir when that is mended")
)

// Limits of what an entry says, in bytes.
const (
	MaxListLen   = 255
	MaxReasonLen = 512
)

// minGarbage is how many bytes must be superseded before the journal is
// written anew: some twenty thousand records, so that a small journal is not
// written over and over.
const minGarbage = 1 << 20

// Entry is what an operator has listed. List and Key identify it.
type Entry struct {
	List    string // 1 to MaxListLen bytes
	Allow   bool   // otherwise it is blocked
	Key     key.Key
	Added   time.Time // times are kept to the millisecond
	Expires time.Time // zero: never
	Reason  string    // at most MaxReasonLen bytes
	UID     uint32    // of the user who added it
}

// Change adds an entry, in place of one that has its list and key, or removes
// the one that has its list and key, if there is one.
type Change struct {
	Remove bool
	Entry
}

// Journal is a journal that this process alone writes to. It is safe for
// concurrent use.
type Journal struct {
	path string
	log  *slog.Logger
	lost int64 // set by Open
	lock *os.File

	writing   sync.Mutex // guards what follows, and the file
	file      file       // nil after Close, or if readOnly
	readOnly  error      // why nothing can be recorded
	size      int64      // of what is intact, and where the next record goes
	torn      bool       // there may be more in the file
	moved     bool       // the directory may not have the file on the disk yet
	rewriteAt int64      // the size before which it is not tried again

	memory  sync.RWMutex // guards entries; taken after writing
	entries entries
}

// file is what a journal needs of an *os.File.
type file interface {
	io.WriterAt
	Truncate(size int64) error
	Sync() error
	Close() error
}

// Open reads the journal at path, or makes one. It fails with [ErrLocked] or
// [ErrForeign], or if the file cannot be read. One that can be read but not
// written is opened all the same, with a warning; then Apply fails.
//
// Without a path the journal is in memory only, and ends with the process.
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
	lock, err := acquire(j.path + ".lock")
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
		j.log.Warn("entries can be neither added nor removed: the journal cannot be written to: " + j.readOnly.Error())
	}
	return nil
}

// acquire locks a file exclusively, until it is closed. It is a file of its
// own, since the journal itself is replaced when it is written anew.
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

// load reads the file, and gives its length: 0 where there is none.
func (j *Journal) load() (int64, error) {
	b, err := os.ReadFile(j.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	var newest time.Time
	damaged, end, err := scan(b, func(c Change) {
		if c.Added.After(newest) {
			newest = c.Added
		}
		j.entries.apply(c)
	})
	if err != nil {
		return 0, err
	}
	for _, d := range damaged {
		j.log.Error("the journal is damaged, what was recorded there is lost; all before and after it counts",
			"offset", d.from, "bytes", d.to-d.from)
		j.lost += int64(d.to - d.from)
	}
	if end < len(b) {
		j.log.Warn("the journal ends with a torn record, as a crash leaves it: cut off",
			"offset", end, "bytes", len(b)-end)
	}
	if now := time.Now(); newest.After(now) {
		j.log.Warn("the clock stands before the time of the last entry: entries will expire late",
			"now", now, "last", newest)
	}
	j.size = int64(end)
	return int64(len(b)), nil
}

// openFile opens the file for writing, whose length is as it was read.
func (j *Journal) openFile(length int64) error {
	if j.size == 0 { // not even a whole magic
		return j.rewrite()
	}
	f, err := os.OpenFile(j.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	j.file, j.torn = f, length > j.size
	return j.mend()
}

// mend brings the file, and its directory, to the state that they should have
// after an error.
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
		if err := syncDir(j.path); err != nil {
			return err
		}
		j.moved = false
	}
	return nil
}

// Apply makes changes, in their order. When it returns without an error they
// are durable; when it fails, none of them has been made. One call writes and
// syncs once, whatever the number of changes. After a crash amid Apply, any
// number of the first changes may be there.
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
			if _, err := appendRecord(nil, 0, c); err != nil { // for the same limits
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
		if b, err = appendRecord(b, j.size, c); err != nil {
			return fmt.Errorf("change %d of %d: %w", i+1, len(batch), err)
		}
	}
	if len(b) == 0 {
		return nil
	}
	if err := j.mend(); err != nil {
		return err
	}
	j.torn = true // until all is written
	_, err := j.file.WriteAt(b, j.size)
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		if bad := j.mend(); bad != nil {
			err = fmt.Errorf("%w; nor could the file be put back, after a restart the changes may be there: %w", err, bad)
		}
		return err
	}
	j.torn = false
	j.size += int64(len(b))
	return nil
}

// tidy writes the journal anew if that is worth while. If it fails, the old one
// goes on growing, which is no reason to refuse changes.
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
		j.log.Warn("the journal cannot be written anew, it goes on growing: "+err.Error(), "bytes", j.size)
	}
}

// rewrite puts a journal of the present entries in the place of the file. Until
// the directory is synced, a crash may bring back the old one, which says the
// same: that is left to the next change.
func (j *Journal) rewrite() (err error) {
	temp := j.path + ".new" // a crash may leave it: the next time overwrites it
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
		j.file.Close() // of no more interest, whatever it answers
	}
	j.file, j.size, j.torn, j.moved = f, size, false, true
	return nil
}

// writeTo writes the present entries to a new file, durably.
func (j *Journal) writeTo(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, 0, err
	}
	const most = 1 << 20 // bytes that are written at once
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

// syncDir makes a file's name durable.
func syncDir(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Entries iterates over all entries, in no order, also those that have expired
// and were not removed yet. Apply waits until the loop has ended, and must not
// be called in it.
func (j *Journal) Entries() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		j.memory.RLock()
		defer j.memory.RUnlock()
		j.entries.all()(yield)
	}
}

// Get finds the entry that a list has for a key.
func (j *Journal) Get(list string, k key.Key) (Entry, bool) {
	j.memory.RLock()
	defer j.memory.RUnlock()
	return j.entries.get(list, k)
}

// Len is the number of entries.
func (j *Journal) Len() int {
	j.memory.RLock()
	defer j.memory.RUnlock()
	return j.entries.n
}

// Expired gives the changes that remove what has expired by now, in no order.
// They are made when they are applied; a change that comes between must not
// be undone by that.
func (j *Journal) Expired(now time.Time) []Change {
	j.memory.RLock()
	defer j.memory.RUnlock()
	var expired []Change
	j.entries.due.until(millis(now), 0, func(e *entry) {
		expired = append(expired, Change{Remove: true, Entry: e.entry()})
	})
	return expired
}

// Lost is the number of damaged bytes that Open found before intact records:
// more than zero says that entries are missing, or removed ones are back.
func (j *Journal) Lost() int64 { return j.lost }

// Close gives the journal free for other processes.
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

// Read gives the entries of the journal at path without opening it, also while
// another process writes to it: those of a moment between the call and the
// return. Where parts are damaged, it gives all others together with an error.
func Read(path string) ([]Entry, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	var es entries
	damaged, _, err := scan(b, es.apply)
	if err != nil {
		return nil, fmt.Errorf("read journal %s: %w", path, err)
	}
	all := make([]Entry, 0, es.n)
	for e := range es.all() {
		all = append(all, e)
	}
	for _, d := range damaged {
		err = errors.Join(err, fmt.Errorf("read journal %s: offset %d: %d bytes are damaged, what was recorded there is lost",
			path, d.from, d.to-d.from))
	}
	return all, err
}
