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
//     were inserted. The file is kept with the suffix ".damaged", and the journal is
//     rewritten.
//   - A file that is shorter than when it was last rewritten is damaged, too: it was cut.
//     A small journal is rewritten each time it is opened.
//   - More at the end than a torn record is kept in a file with the suffix ".torn".
//
// A file has steady times (see [clock.Clock]), and callers have those of the wall clock: a step of
// that ends no entry early, and prolongs none. An entry that was removed as expired does not come
// back.
package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/clock"
	"weir/control/durable"
	"weir/filter/key"
)

var (
	// ErrLocked means that another process has the journal open.
	ErrLocked = errors.New("another daemon has it open")
	// ErrForeign means that the file is not a journal, or that nothing in it is
	// intact.
	ErrForeign = errors.New("not a journal of weir, or nothing in it is intact: move it out of the way")
	// ErrReadOnly means that the journal could not be opened for writing.
	ErrReadOnly = errors.New("the journal could not be opened for writing")
)

// Limits of an entry's fields, in bytes.
const (
	MaxListLen   = 255
	MaxReasonLen = 512
	MaxClientLen = 255
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
	Added   time.Time // with millisecond resolution, by the wall clock as it is set now
	Expires time.Time // the same; the zero time: never
	Reason  string    // at most MaxReasonLen bytes
	UID     uint32    // of the user who added it
	Client  string    // of another host, who did, at most MaxClientLen bytes; "": a user of this one
}

// Change adds an entry, replacing the one with its list and key, or removes
// that one if it exists.
type Change struct {
	Remove bool
	Entry

	whole int64 // above 0: it is no change, but states how long the file was when it was rewritten
}

// Journal is an open journal, which only this process may write to. It is safe
// for concurrent use.
type Journal struct {
	path  string
	clock *clock.Clock
	log   *slog.Logger
	lost  int64 // set by Open and Read
	lock  *os.File

	writing   sync.Mutex    // guards the fields below, and the file
	file      *durable.File // nil after Close, or if readOnly
	readOnly  error         // the reason, nil if writable; it is tried again if there is a lock
	unkept    int64         // offset of the damaged end that is still to be kept; 0: there is none
	reopenAt  time.Time     // when it is tried again at the earliest
	whole     int64         // the size when the file was last rewritten; 0: unknown
	damaged   []byte        // what is to be kept of a damaged file before it is rewritten
	shift     int64         // added to a record's offset in its checksum: bytes are missing
	rewriteAt int64         // the size from which a rewrite is tried again

	memory  sync.RWMutex // guards entries; taken after writing
	entries entries
}

// Clock returns the clock of the journal's steady times.
func (j *Journal) Clock() *clock.Clock { return j.clock }

// Open reads or creates the journal at path. It returns [ErrLocked] or
// [ErrForeign], wrapped, or fails if the file cannot be read. A journal that
// can be read but not written is opened with a warning; Apply then fails until
// it can be written, or for good where it could not be locked.
//
// Without a path the journal is in memory only.
func Open(path string, c *clock.Clock, log *slog.Logger) (*Journal, error) {
	if path == "" {
		return &Journal{clock: c, log: log}, nil
	}
	j := &Journal{path: path, clock: c, log: log.With("journal", path)}
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
	size, err := j.load()
	if err != nil {
		return err
	}
	if j.readOnly == nil {
		j.readOnly = j.openFile(size)
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

// load reads the file and returns the length of its intact part, 0 if it does not exist.
func (j *Journal) load() (int64, error) {
	b, err := os.ReadFile(j.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	whole := int64(0)
	damaged, end, shift, err := scan(b, func(c Change) {
		whole = max(whole, c.whole)
		j.entries.apply(c)
	})
	if err != nil {
		return 0, err
	}
	cut := len(damaged) > 0 && damaged[len(damaged)-1].to == len(b)
	if j.lose(damaged); j.lost > 0 {
		j.damaged = b
	}
	says := "journal ends with a torn record, as after a crash: cut off"
	j.whole = whole
	if j.shift = int64(shift); len(b)-end > frameLen+maxBodyLen {
		if err := durable.WriteFile(j.path+".torn", b[end:]); err != nil {
			j.unkept, err = int64(end), tailError(err)
			says = "journal ends with a damaged part, which stays for now: " + err.Error()
			if j.readOnly == nil { // do not cut it off
				j.readOnly = err
			}
		}
	}
	if end < len(b) && (!cut || j.unkept > 0) {
		j.log.Warn(says, "offset", end, "bytes", len(b)-end)
	}
	return int64(end), nil
}

// lose logs and counts the damaged parts of a file.
func (j *Journal) lose(damaged []span) {
	before := 0
	for _, d := range damaged {
		missing := d.shift - before
		before = d.shift
		j.log.Error("journal damaged: these bytes are lost, all records before and after them count",
			"offset", d.from, "bytes", d.to-d.from, "missing_bytes", missing)
		j.lost += int64(d.to - d.from + max(missing, 0))
	}
}

// openFile opens the file for writing and cuts it off behind its intact part.
func (j *Journal) openFile(size int64) error {
	switch {
	case size == 0: // not even a complete magic
		return j.rewrite()
	case j.damaged != nil || size != j.whole && size <= minGarbage:
		err := j.rewrite()
		if err == nil {
			return nil
		}
		if j.damaged != nil {
			j.log.Warn("the damaged journal cannot be rewritten, and stays as it is: " + err.Error())
		}
	}
	f, err := durable.Open(j.path, 0)
	if err == nil {
		j.file = f
		err = f.Cut(size)
	}
	return err
}

// Apply makes changes in order. If it returns nil they are durable; if it
// fails, none of them has been made. It writes and syncs once, whatever the
// number of changes. After a crash during Apply, any number of the first
// changes may be present.
func (j *Journal) Apply(batch []Change) error {
	j.writing.Lock()
	defer j.writing.Unlock()
	batch = j.steady(batch)
	err := j.mend() // before the write, which could give a file that was cut off its former size
	if err == nil {
		err = j.record(batch)
	}
	if err == nil && j.misplaced() {
		if err = j.restore(); err == nil {
			err = j.record(batch)
		}
	}
	if err != nil {
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

// steady returns changes with steady times.
func (j *Journal) steady(batch []Change) []Change {
	all, steady := slices.Clone(batch), j.clock.SteadyNow()
	for i, c := range all {
		all[i].Added, all[i].Expires = steady(c.Added), steady(c.Expires)
	}
	return all
}

// shift returns an entry with times that are later.
func (e Entry) shift(by time.Duration) Entry {
	if by != 0 && !e.Added.IsZero() {
		e.Added = e.Added.Add(by)
	}
	if by != 0 && !e.Expires.IsZero() {
		e.Expires = e.Expires.Add(by)
	}
	return e
}

func (e Entry) over(now time.Time) bool { return !e.Expires.IsZero() && !e.Expires.After(now) }

// Check looks whether the journal, or its lock, was removed or replaced, or the journal
// overwritten, and restores them: the entries in memory are those that were acknowledged. It
// logs that. An error means that a restart would forget them.
func (j *Journal) Check() error {
	j.writing.Lock()
	defer j.writing.Unlock()
	if err := j.relock(); err != nil {
		return fmt.Errorf("journal %s: %w", j.path, err)
	}
	return j.mend()
}

// mend restores the journal where it must be, and opens it where that has failed.
func (j *Journal) mend() error {
	switch {
	case j.readOnly != nil:
		return j.reopen()
	case j.misplaced():
		return j.restore()
	}
	return nil
}

// reopen writes the journal anew where it could not be opened for writing, as while the disk was full. It
// has what is in memory: the lock was held since it was read. Without the lock it fails.
func (j *Journal) reopen() error {
	if j.lock == nil { // another process may have written to it
		return fmt.Errorf("%w, restart weir once that is fixed: %w", ErrReadOnly, j.readOnly)
	}
	if began := time.Now(); !began.Before(j.reopenAt) {
		if j.readOnly = j.keepTail(); j.readOnly == nil {
			j.readOnly = j.rewrite()
		}
		j.reopenAt = reopenAfter(began, time.Now())
	}
	if j.readOnly != nil {
		return fmt.Errorf("%w: %w", ErrReadOnly, j.readOnly)
	}
	j.log.Info("the journal can be written again")
	return nil
}

// keepTail keeps the end of the file that could not be kept when it was read. It is read again, since it
// may be large.
func (j *Journal) keepTail() error {
	if j.unkept == 0 {
		return nil
	}
	b, err := os.ReadFile(j.path)
	if err == nil && int64(len(b)) > j.unkept {
		if err = durable.WriteFile(j.path+".torn", b[j.unkept:]); err == nil {
			j.log.Warn("journal ended with a damaged part: cut off, kept in "+j.path+".torn", "offset", j.unkept, "bytes", int64(len(b))-j.unkept)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return tailError(err)
	}
	j.unkept = 0
	return nil
}

func tailError(err error) error { return fmt.Errorf("its damaged end cannot be kept: %w", err) }

// reopenAfter returns when to write the journal anew after an attempt that has failed: a large one fills a
// disk each time, while changes wait. At most a twentieth of the time goes into that.
func reopenAfter(began, ended time.Time) time.Time {
	const rest = 20
	if took := ended.Sub(began); took > time.Second/rest { // there may be an attempt each second
		return ended.Add(rest * took)
	}
	return ended
}

// misplaced reports whether the journal is no longer at its path, or another program has written
// to it.
func (j *Journal) misplaced() bool { return j.file != nil && !j.file.InPlace() }

// restore writes the journal anew at its path. A file that has come there is kept beside it, and
// stays at the path until the new one is whole: a restart must not find nothing.
func (j *Journal) restore() error {
	j.log.Error("the journal was removed or replaced while weir ran: it is written anew", "entries", j.entries.n)
	err := durable.MkdirAll(filepath.Dir(j.path))
	if err == nil {
		if _, missing := os.Lstat(j.path); missing == nil {
			err = durable.Link(j.path, j.path+".replaced")
		}
	}
	if err == nil {
		err = j.rewrite()
	}
	if err != nil {
		return fmt.Errorf("it was removed or replaced, and cannot be written anew, so that a restart would forget its entries: %w", err)
	}
	return nil
}

// relock locks the journal again where the lock's file was removed or replaced: another
// process could lock the new one.
func (j *Journal) relock() error {
	if j.lock == nil {
		return nil
	}
	own, err := j.lock.Stat()
	if err != nil {
		return nil // unknown
	}
	there, err := os.Stat(lockOf(j.path))
	if err == nil && os.SameFile(own, there) || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := durable.MkdirAll(filepath.Dir(j.path)); err != nil {
		return err
	}
	lock, err := acquire(lockOf(j.path))
	if err != nil {
		return err
	}
	j.lock.Close()
	j.lock = lock
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
	case j.file == nil:
		return fs.ErrClosed
	}
	var b []byte
	for i, c := range batch {
		var err error
		if b, err = appendRecord(b, j.file.Size()+j.shift, c); err != nil {
			return fmt.Errorf("change %d of %d: %w", i+1, len(batch), err)
		}
	}
	if len(b) == 0 {
		return nil
	}
	return j.file.Append(b)
}

// tidy rewrites the journal if enough of it is superseded. If that fails, the
// old one continues to grow, and changes are still accepted.
func (j *Journal) tidy() {
	if j.path == "" {
		return
	}
	size := j.file.Size()
	garbage := size - j.entries.size
	if garbage <= max(j.entries.size, minGarbage) || size < j.rewriteAt {
		return
	}
	if err := j.rewrite(); err != nil {
		j.rewriteAt = size + minGarbage
		j.log.Warn("journal cannot be rewritten and keeps growing: "+err.Error(), "bytes", size)
	}
}

// rewrite replaces the file with a journal of the present entries. Until the
// directory is synced, a crash may bring back the old one, which has the same
// entries; if that fails, it is left to the next change.
func (j *Journal) rewrite() error {
	if j.damaged != nil {
		if err := durable.WriteFile(j.path+".damaged", j.damaged); err != nil {
			return fmt.Errorf("the damaged file cannot be kept: %w", err)
		}
		j.damaged = nil
	}
	f, err := durable.Create(j.path + ".new") // left over after a crash, and then overwritten
	if err != nil {
		return err
	}
	if err := j.writeTo(f); err != nil {
		f.Discard()
		return err
	}
	if err := f.Replace(j.path); err != nil && f.Path() != j.path {
		return err
	}
	if j.file != nil {
		j.file.Close() // no longer needed: an error does not matter
	}
	j.file, j.shift, j.whole = f, 0, f.Size()
	return nil
}

// writeTo writes the present entries to a new file.
func (j *Journal) writeTo(f *durable.File) error {
	const most = 1 << 20 // bytes per write
	b, err := appendRecord([]byte(magic), 0, Change{whole: int64(len(magic)) + wholeLen + j.entries.size})
	if err != nil {
		return err
	}
	flush := func() error {
		_, err := f.Write(b)
		b = b[:0]
		return err
	}
	for e := range j.entries.all() {
		var err error
		if b, err = appendRecord(b, f.Size(), Change{Entry: e}); err == nil && len(b) >= most {
			err = flush()
		}
		if err != nil {
			return err
		}
	}
	return flush()
}

// Entries iterates over all entries in no particular order, including those
// that have expired but were not removed yet. Apply blocks until the loop ends,
// and must not be called in it.
func (j *Journal) Entries() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		j.memory.RLock()
		defer j.memory.RUnlock()
		ahead := j.clock.Ahead()
		for e := range j.entries.all() {
			if !yield(e.shift(ahead)) {
				return
			}
		}
	}
}

// EntriesOf is like [Journal.Entries] for the entries of one list, without those whose time is over: they
// may be there because their end could not be recorded.
func (j *Journal) EntriesOf(list string) iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		j.memory.RLock()
		defer j.memory.RUnlock()
		now, ahead := j.clock.Now()
		for e := range j.entries.lists[list].all() {
			if e = e.shift(ahead); !e.over(now) && !yield(e) {
				return
			}
		}
	}
}

// Current is like [Journal.Get], without an entry whose time is over.
func (j *Journal) Current(list string, k key.Key) (Entry, bool) {
	j.memory.RLock()
	defer j.memory.RUnlock()
	e, ok := j.entries.get(list, k)
	if !ok {
		return Entry{}, false
	}
	now, ahead := j.clock.Now()
	e = e.shift(ahead)
	return e, !e.over(now)
}

// Get returns a list's entry for a key.
func (j *Journal) Get(list string, k key.Key) (Entry, bool) {
	j.memory.RLock()
	defer j.memory.RUnlock()
	e, ok := j.entries.get(list, k)
	if !ok {
		return Entry{}, false // without asking the clock: most of many that are added are new
	}
	return e.shift(j.clock.Ahead()), true
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
	ahead := j.clock.Ahead()
	var expired []Change
	j.entries.due.until(millis(j.clock.Steady(now)), 0, func(e *entry) {
		expired = append(expired, Change{Remove: true, Entry: e.entry().shift(ahead)})
	})
	return expired
}

// Lost returns the number of damaged bytes that Open or Read found before intact
// records. If it is above zero, entries may be missing, and removed ones may be
// back.
func (j *Journal) Lost() int64 { return j.lost }

// Damage says what Lost means for the entries, "" if nothing is lost.
func (j *Journal) Damage() string {
	if j.lost == 0 {
		return ""
	}
	return fmt.Sprintf("damaged: %d bytes are lost, so that manual entries may be missing, and removed ones may be back", j.lost)
}

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

// Read returns a journal in memory with the entries of the one at path, without opening that, even
// while another process writes to it: those of some moment between call and return. Where parts are
// damaged, it has all other entries, and Damage says so.
func Read(path string, c *clock.Clock, log *slog.Logger) (*Journal, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	j := &Journal{clock: c, log: log.With("journal", path)}
	damaged, _, _, err := scan(b, j.entries.apply)
	if err != nil {
		return nil, fmt.Errorf("read journal %s: %w", path, err)
	}
	j.lose(damaged)
	return j, nil
}
