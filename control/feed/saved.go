package feed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weir/control/durable"
	"weir/control/list/listfile"
)

// A saved source is a file: the bytes as they were served, those of a
// directory's files concatenated, then a record about them in JSON, then a
// footer with the record's length and checksum. The bytes come first because
// they are written as they arrive; they are unprocessed so that a line of an
// error or an explanation is a line of the feed.

// record describes the bytes before it.
type record struct {
	Source string    `json:"source"`
	Read   time.Time `json:"read"`
	validator
	SHA256  string       `json:"sha256"`
	Entries int          `json:"entries"`
	Files   []recordFile `json:"files"`

	// When they were read first, if there were no contents before.
	First time.Time `json:"first,omitzero"`

	// What the number of later entries is compared with, and since when.
	Reference  float64   `json:"reference,omitempty"`
	ReferredAt time.Time `json:"referred_at,omitzero"`

	// How many entries there were before their number jumped, and when that was.
	Before float64   `json:"before,omitempty"`
	Jumped time.Time `json:"jumped,omitzero"`

	Names int `json:"names,omitempty"` // of names, how many there were, with other entries beside them

	Unended bool `json:"unended,omitempty"` // their last line had no end, where their length was not known

	Signed time.Time `json:"signed,omitzero"` // as their signature says

	Accepted bool `json:"accepted,omitempty"` // by an operator, whatever they cover

	// Of contents that an operator has returned to: the bytes are in the format of lists, and
	// when that was.
	Plain      bool      `json:"plain,omitempty"`
	RolledBack time.Time `json:"rolled_back,omitzero"`

	Purpose string `json:"purpose,omitempty"` // of the list, for entries that a source keeps until it is read

	Versions []version `json:"versions,omitempty"` // of a file with versions
}

type recordFile struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// footer returns the end of a saved file, of fixed length.
func footer(record []byte) []byte {
	return fmt.Appendf(nil, "\nweir feed 1 %010d %x\n", len(record), sha256.Sum256(record))
}

var footerLen = int64(len(footer(nil)))

// spool writes arriving bytes to the file that replaces the saved one if they
// are good. It reports its errors only then: contents that cannot be saved can
// still be used.
type spool struct {
	path string // of the saved file; "": not saved
	file *durable.File
	err  error // of making it
}

func (s *spool) temporary() string { return s.path + ".tmp" }

// Write never fails.
func (s *spool) Write(p []byte) (int, error) {
	if s.path == "" {
		return len(p), nil
	}
	if s.file == nil && s.err == nil {
		s.create()
	}
	if s.err == nil {
		_, _ = s.file.Write(p) // finish returns the error
	}
	return len(p), nil
}

func (s *spool) create() {
	defer writing.take(context.Background())()
	if s.err = durable.MkdirAll(filepath.Dir(s.path)); s.err == nil {
		s.file, s.err = durable.Create(s.temporary())
	}
}

// next returns the path of complete contents, which replace the saved ones once
// they are kept.
func next(path string) string { return path + ".new" }

// finish completes the spool, so that it can replace the saved file. After a crash
// at any instant, there is either the old one or the new one.
func (s *spool) finish(r record) error {
	if s.path == "" {
		return nil
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, _ = s.Write(append(text, footer(text)...)) // never fails
	if s.err == nil {
		defer writing.take(context.Background())()
		if s.err = errors.Join(s.file.Replace(next(s.path)), s.file.Close()); s.err != nil {
			s.file.Discard()
		}
		s.file = nil
	}
	if s.err != nil {
		return fmt.Errorf("not saved: %w", s.err)
	}
	return nil
}

// promote replaces the saved contents with the complete ones.
func (f *Feed) promote(s *source, c *contents) error {
	if s.saved == "" || f.ReadOnly {
		return nil
	}
	defer writing.take(context.Background())()
	if err := durable.Rename(next(s.saved), s.saved); err != nil {
		s.forgetNext() // it is saved with the next attempt
		return fmt.Errorf("not saved: %w", err)
	}
	_ = os.Remove(formerPath(s.saved)) // else it would come back where the contents have no entries
	for _, beside := range s.beside() {
		if durable.Rename(next(beside), beside) != nil {
			_ = os.Remove(next(beside)) // then it describes other contents, and is not used
		}
	}
	if c.RolledBack.IsZero() {
		_ = os.Remove(rejectedPath(s.saved))
	}
	s.forgetRefused(c)
	return nil
}

// beside returns the paths of the files beside the saved contents.
func (s *source) beside() []string {
	return []string{agesPath(s.saved), versionsPath(s.saved), rejectedPath(s.saved), refusedPath(s.saved)}
}

// forgetNext removes complete contents that do not replace the saved ones, where it can.
func (s *source) forgetNext() {
	for _, path := range append(s.beside(), s.saved) {
		_ = os.Remove(next(path))
	}
}

// discard removes the spool; after finish it does nothing.
func (s *spool) discard() {
	if s.file != nil {
		s.file.Discard()
		s.file = nil
	}
}

// saved is an open saved file.
type saved struct {
	record
	file *os.File
}

// openSaved opens a saved file; it returns nil if there is none. It checks the
// record, but not yet the bytes.
func openSaved(path string) (*saved, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fail(Damaged, "saved contents are damaged: %w", err)
	}
	r, err := readRecord(f)
	if err != nil {
		f.Close()
		return nil, fail(Damaged, "saved contents are damaged: %s: %w", path, err)
	}
	return &saved{r, f}, nil
}

func readRecord(f *os.File) (record, error) {
	var r record
	st, err := f.Stat()
	if err != nil {
		return r, err
	}
	foot := make([]byte, footerLen)
	if _, err := f.ReadAt(foot, st.Size()-footerLen); err != nil {
		return r, fmt.Errorf("no footer: %w", err)
	}
	var n int64
	if _, err := fmt.Sscanf(string(foot), "\nweir feed 1 %d ", &n); err != nil || n < 0 || n > st.Size()-footerLen {
		return r, errors.New("no footer")
	}
	text := make([]byte, n)
	if _, err := f.ReadAt(text, st.Size()-footerLen-n); err != nil {
		return r, err
	}
	if string(footer(text)) != string(foot) {
		return r, errors.New("the record's checksum is wrong")
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, err
	}
	return r, nil
}

// body returns the bytes.
func (s *saved) body() *body {
	b := &body{validator: s.validator, known: true, plain: s.Plain}
	at := int64(0)
	for _, f := range s.Files {
		section := io.NewSectionReader(s.file, at, f.Bytes)
		b.parts = append(b.parts, part{f.Name, func() (io.ReadCloser, error) { return io.NopCloser(section), nil }})
		at += f.Bytes
	}
	return b
}

// text returns the bytes of all files together. There may be none: of an empty directory.
func (s *saved) text() io.Reader {
	n := int64(0)
	for _, f := range s.Files {
		n += f.Bytes
	}
	return io.NewSectionReader(s.file, 0, n)
}

// check fails unless the bytes are those that were saved.
func (s *saved) check() error {
	sum := sha256.New()
	if _, err := io.Copy(sum, s.text()); err != nil {
		return fail(Damaged, "saved contents are damaged: %w", err)
	}
	if hex.EncodeToString(sum.Sum(nil)) != s.SHA256 {
		return fail(Damaged, "saved contents are damaged: %s: the checksum is wrong", s.file.Name())
	}
	return nil
}

// isOf reports whether the file is of a source's contents, rather than of another's, or one of those
// beside them. Sources of the same name are numbered, and the numbers change with the configuration.
func (s *saved) isOf(of *source) bool {
	same := s.Source == of.name || strings.HasPrefix(s.Source, of.String()+"#")
	return same && len(s.Versions) == 0 && s.Purpose == ""
}

// damage notes an error of loading what is saved, nil for none, if it is damaged: an outcome says so
// until an attempt succeeds, whatever others have failed for.
func (s *source) damage(o *Outcome, err error) {
	if err == nil {
		err = s.damaged
	}
	f := (*failure)(nil)
	switch {
	case !errors.As(err, &f) || f.kind != Damaged:
		return
	case s.damaged == nil:
		s.damaged = err
	case o.Err != nil && !errors.Is(o.Err, err):
		err = fmt.Errorf("%w; the source cannot be read either: %w", err, o.Err)
	}
	o.Result, o.Failure, o.Err = Failed, Damaged, err
}

// load loads the saved contents. They were read before: it takes as long as it takes.
func (f *Feed) load(ctx context.Context, s *source) Outcome {
	o := Outcome{Source: s.name, Began: time.Now()}
	old, err := openSaved(s.saved)
	if old == nil && err == nil {
		return Outcome{Source: s.name}
	}
	var c *contents
	if err == nil && !old.isOf(s) {
		old.file.Close()
		err = fail(Damaged, "saved contents are damaged: %s: it is another file, of %s", s.saved, old.Source)
	}
	if err == nil {
		defer old.file.Close()
		w := listfile.NewWork(ctx, 0)
		defer w.Release()
		c, err = f.receive(w, s, old.body(), io.Discard)
		if err != nil || c.SHA256 != old.SHA256 {
			// Corruption causes all kinds of errors, but is the reason to
			// report.
			if damaged := old.check(); damaged != nil {
				err = damaged
			}
		}
	}
	if err == nil && f.Format.Kind == CrowdSec {
		s.decisions, err = parseDecisions(old.text(), f.Clock)
	}
	if err == nil && f.Format.Kind == Names {
		s.restoreNames(old.text())
	}
	if err != nil {
		o.fail(err)
		s.damage(&o, err)
	} else {
		c.Read, c.saved = old.Read, true
		c.Reference, c.ReferredAt, c.Accepted = old.Reference, old.ReferredAt, old.Accepted
		c.Signed, c.Before, c.Jumped, c.First = old.Signed, old.Before, old.Jumped, old.First
		c.Plain, c.RolledBack, c.Names, c.Unended = old.Plain, old.RolledBack, old.Names, old.Unended
		s.current = c
		c.decisions, c.resolved = s.decisions, s.names
		if left, ended := s.decisions.active(time.Now()); len(ended) > 0 {
			s.decisions = left
			f.remake(s)
		}
		o.Result, o.Changed, o.Entries = Loaded, true, s.current.entries.Len()
	}
	o.Ended = time.Now()
	return o
}
