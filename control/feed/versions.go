package feed

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/durable"
	"weir/control/list"
	"weir/control/list/listfile"
)

// The versions of a source that were active before the present one are a file beside it, of the
// form of a saved source: for each of them two parts, in the format of lists, then the record,
// which describes them. The parts have the entries to add to the version after it and those
// to remove from it; or the first one has all entries of the version, where these are fewer.

// version describes a version.
type version struct {
	api.FeedVersion
	Saved string `json:"saved,omitempty"` // the checksum of the saved contents, where those were not fetched
	Whole bool   `json:"whole,omitempty"` // the first part has all entries
}

const (
	// maxVersions is the number of versions that are remembered beside the active one.
	maxVersions = 5

	// leastRemembered is how many entries the parts of all versions may have; of a larger
	// source, as many as it has itself. The last version is always remembered.
	leastRemembered = 1 << 16
)

// ErrNoVersion is the error of a rollback of a list whose last version is not known.
var ErrNoVersion = errors.New("no version before the active one is known")

// ErrUnknownVersion is the error of a question for a version that is not known.
var ErrUnknownVersion = errors.New("no such version")

// refusedPath is where the last contents are that were not plausible: a pair of entries to add to
// the active contents, and to remove from them.
func refusedPath(saved string) string { return saved + ".refused" }

func versionsPath(saved string) string { return saved + ".versions" }

// rejectedPath is where the contents are that an operator has returned from: pairs of entries
// to add to the active contents, and to remove from them.
func rejectedPath(saved string) string { return saved + ".rejected" }

// hasVersions reports whether versions of the source are remembered. Decisions and names
// change all the time, and come from their source one by one; entries of the configuration
// are its own matter.
func (f *Feed) hasVersions(s *source) bool {
	return s.saved != "" && !f.ReadOnly && s.written == nil && f.Format.Kind != CrowdSec && f.Format.Kind != Names
}

// partsWriter writes a file of pairs of parts.
type partsWriter struct {
	to  *spool
	sum hash.Hash
	record
}

func writeParts(path string, c *contents) *partsWriter {
	w := &partsWriter{to: &spool{path: path}, sum: sha256.New()}
	w.Source, w.Read, w.Entries = c.Source, c.Read, c.entries.Len()
	return w
}

func (w *partsWriter) add(sets ...*list.Set) {
	for _, set := range sets {
		n, _ := listfile.Plain(set).WriteTo(io.MultiWriter(w.sum, w.to)) // the spool keeps its first error
		w.Files = append(w.Files, recordFile{Bytes: n})
	}
}

// copy copies a pair from another file, where it begins at an offset. It returns the offset of
// the next one.
func (w *partsWriter) copy(from *saved, pair int, at int64) (int64, error) {
	both := from.Files[2*pair : 2*pair+2]
	n := both[0].Bytes + both[1].Bytes
	_, err := io.Copy(io.MultiWriter(w.sum, w.to), io.NewSectionReader(from.file, at, n))
	w.Files = append(w.Files, both...)
	return at + n, err
}

func (w *partsWriter) finish() error {
	w.SHA256 = hex.EncodeToString(w.sum.Sum(nil))
	return w.to.finish(w.record)
}

// pair reads a pair of parts.
func (s *saved) pair(n int) (sets [2]*list.Set, err error) {
	for i, p := range s.body().parts[2*n : 2*n+2] {
		r, err := p.open()
		if err != nil {
			return sets, err
		}
		e, _, err := listfile.Parse(s.file.Name(), r, listfile.Options{})
		if err != nil {
			return sets, fail(Damaged, "%w", err)
		}
		sets[i] = e.Set()
	}
	return sets, nil
}

// rememberVersion has the file with the versions follow contents that are about to be saved,
// given the contents that are saved so far, and the difference. It reports its errors by
// forgetting the versions: they are no reason not to take the contents.
func (f *Feed) rememberVersion(s *source, c, former *contents, delta list.Delta) {
	if !f.hasVersions(s) || c.sum == former.sum {
		return
	}
	old, all := s.openVersions(former)
	if old != nil {
		defer old.file.Close()
	}
	w := writeParts(versionsPath(s.saved), c)
	defer w.to.discard()
	active := versionOf(c, c.Read)
	active.Added, active.Removed = delta.Add.Len(), delta.Remove.Len()
	left := max(leastRemembered, c.entries.Len())
	pair, at := 0, int64(0)
	switch {
	case old == nil && delta.Len() == 0:
		return
	case delta.Len() == 0: // other bytes, the same entries
		active, all = all[0], all[1:]
		active.SHA256, active.Saved = c.SHA256, ""
	case !c.RolledBack.IsZero(): // to the version before, which is active again
		if len(all) < 2 {
			return
		}
		pair, at = 1, old.Files[0].Bytes+old.Files[1].Bytes
		active, all = all[1], all[2:]
		active.Saved, active.Whole = c.SHA256, false
	default:
		if all[0].Whole = former.entries.Len() < delta.Len(); all[0].Whole {
			w.add(former.entries, nil)
		} else {
			w.add(delta.Remove, delta.Add)
		}
		left -= parted(all[0], active)
		w.Versions, all = append(w.Versions, all[0]), all[1:]
	}
	after := active
	if len(w.Versions) > 0 {
		after = w.Versions[0]
	}
	for _, v := range all[:min(len(all), maxVersions-len(w.Versions))] {
		if left -= parted(v, after); left < 0 {
			break
		}
		var err error
		if at, err = w.copy(old, pair, at); err != nil {
			return
		}
		pair, after = pair+1, v
		w.Versions = append(w.Versions, v)
	}
	w.Versions = append([]version{active}, w.Versions...)
	_ = w.finish()
}

func versionOf(c *contents, since time.Time) version {
	v := version{FeedVersion: api.FeedVersion{Since: since, Entries: c.entries.Len(), SHA256: c.SHA256}}
	if c.Plain { // the bytes that were fetched are gone
		v.SHA256, v.Saved = "", c.SHA256
	}
	return v
}

// parted returns the number of entries in the parts of a version, given the one after it.
func parted(v, after version) int {
	if v.Whole {
		return v.Entries
	}
	return after.Added + after.Removed
}

// openBeside opens a file beside a source's saved contents, nil where there is none about them.
func openBeside(path string, c *contents) *saved {
	for _, path := range []string{path, next(path)} { // a crash may have come between two renames
		f, err := openSaved(path)
		if err != nil || f == nil {
			continue
		}
		if len(f.Versions) > 0 && cmp.Or(f.Versions[0].Saved, f.Versions[0].SHA256) == c.SHA256 {
			return f
		}
		f.file.Close()
	}
	return nil
}

// openVersions returns the versions of a source with its contents as the active ones, and the
// file with those before, nil where none are known.
func (s *source) openVersions(c *contents) (*saved, []version) {
	if f := openBeside(versionsPath(s.saved), c); f != nil {
		if n := len(f.Versions); len(f.Files) == 2*(n-1) {
			return f, f.Versions
		}
		f.file.Close()
	}
	since := c.First
	if since.IsZero() {
		since = c.Read
	}
	return nil, []version{versionOf(c, since)}
}

// Versions returns the versions of the sources that have been read. With "" for diff, each has its
// difference to the one before, and refused ones to the active one; with the beginning of a
// checksum, that version alone; with two, the second has its difference to the first. Versions
// fails with [ErrUnknownVersion] where there is no such version.
func (f *Feed) Versions(diff ...string) ([]api.SourceVersions, error) {
	all, found, unknown := []api.SourceVersions{}, len(diff) == 0, slices.Clone(diff)
	for s, c := range f.loaded() {
		if !f.hasVersions(s) {
			continue
		}
		one, versions, err := s.versions(c, len(diff) > 0)
		if err != nil {
			return nil, err
		}
		differ := func(to, from int) {
			found = true
			d := versions[to].entries.Diff(versions[from].entries)
			v := &versions[to].FeedVersion
			v.Diff = &api.VersionDiff{From: versions[from].SHA256}
			v.Diff.Added, v.Diff.MoreAdded = textOf(d.Add)
			v.Diff.Removed, v.Diff.MoreRemoved = textOf(d.Remove)
		}
		active := len(versions) - one
		at := func(beginning string) int {
			i := slices.IndexFunc(versions, func(v refused) bool { return strings.HasPrefix(v.SHA256, beginning) })
			if i >= 0 {
				unknown = slices.DeleteFunc(unknown, func(d string) bool { return d == beginning })
			}
			return i
		}
		before := func(i int) int { return max(i+1, active) }
		switch {
		case len(diff) == 1 && diff[0] == "":
			unknown, found = nil, true
			for i := range versions {
				if before(i) < len(versions) {
					differ(i, before(i))
				}
			}
		case len(diff) == 1:
			if i := at(diff[0]); i >= 0 && before(i) < len(versions) {
				differ(i, before(i))
			}
		case len(diff) > 1:
			if from, to := at(diff[0]), at(diff[1]); from >= 0 && to >= 0 {
				differ(to, from)
			}
		}
		of := api.SourceVersions{Source: s.name}
		for i, v := range versions {
			if i < active {
				of.Refused = append(of.Refused, v.FeedVersion)
			} else {
				of.Versions = append(of.Versions, v.FeedVersion)
			}
		}
		all = append(all, of)
	}
	switch {
	case len(unknown) > 0 && unknown[0] != "":
		return nil, fmt.Errorf("%w: no known version has a checksum that begins with %q", ErrUnknownVersion, unknown[0])
	case len(diff) > 1 && !found:
		return nil, fmt.Errorf("%w: %q and %q are versions of different sources", ErrUnknownVersion, diff[0], diff[1])
	case len(diff) > 0 && diff[0] != "" && !found:
		return nil, fmt.Errorf("%w: %q is the first that is known, with none before it", ErrUnknownVersion, diff[0])
	}
	return all, nil
}

// versions returns the refused versions of a source, then the active one and those before it, and how
// many these are. They have entries where these are wanted.
func (s *source) versions(c *contents, wanted bool) (kept int, all []refused, err error) {
	for _, path := range []string{rejectedPath(s.saved), refusedPath(s.saved)} {
		was := openBeside(path, c)
		if was == nil {
			continue
		}
		defer was.file.Close()
		if !wanted {
			for _, v := range was.Versions[1:] {
				all = append(all, refused{version: v})
			}
			continue
		}
		some, err := was.refused(c)
		if err != nil {
			return 0, nil, err
		}
		all = append(all, some...)
	}
	old, versions := s.openVersions(c)
	if old != nil {
		defer old.file.Close()
		if wanted {
			if err := old.check(); err != nil {
				return 0, nil, err
			}
		}
	}
	entries := c.entries
	for i, v := range versions {
		if wanted && i > 0 {
			parts, err := old.pair(i - 1)
			if err != nil {
				return 0, nil, err
			}
			before := entries
			if entries = parts[0]; !v.Whole {
				entries, _ = before.Apply(list.Delta{Add: parts[0], Remove: parts[1]})
			}
		}
		all = append(all, refused{v, entries})
	}
	return len(versions), all, nil
}

// textOf returns the first entries of a set as text, and how many more there are.
func textOf(set *list.Set) (first []string, more int) {
	first = []string{}
	in, out := io.Pipe()
	go func() {
		_, err := listfile.Plain(set).WriteTo(out)
		out.CloseWithError(err)
	}()
	defer in.Close()
	for lines := bufio.NewScanner(in); len(first) < api.MaxDiff && lines.Scan(); {
		first = append(first, lines.Text())
	}
	return first, set.Len() - len(first)
}

// Rollback returns to the version before the last change: of the source that has changed last.
// Contents like those that it returns from are refused from then on, also after a second
// rollback, until the source has something else or is accepted by [Feed.Accept]. Rollback fails with
// [ErrNoVersion] where no version is known, and otherwise only if ctx ends; the outcome has
// other failures.
func (f *Feed) Rollback(ctx context.Context) (Outcome, error) {
	var last *source
	var since time.Time
	for s, c := range f.loaded() {
		if !f.hasVersions(s) {
			continue
		}
		if old, all := s.openVersions(c); old != nil {
			old.file.Close()
			if len(all) > 1 && (last == nil || all[0].Since.After(since)) {
				last, since = s, all[0].Since
			}
		}
	}
	if last == nil {
		return Outcome{}, ErrNoVersion
	}
	if err := last.lockAttempt(ctx); err != nil {
		return Outcome{}, err
	}
	defer last.unlockAttempt()
	return f.rollBack(last)
}

func (f *Feed) rollBack(s *source) (Outcome, error) {
	o := Outcome{Source: s.name, Began: time.Now()}
	to := &spool{path: s.saved}
	defer to.discard()
	s.mu.Lock()
	old := s.current
	s.mu.Unlock()
	c, err := s.before(old, to)
	if errors.Is(err, ErrNoVersion) {
		return o, err // it has changed since
	}
	if err == nil && f.Refuse != nil {
		if refusal := f.Refuse(c.entries, false); refusal != nil {
			err = fail(Refused, "%w", refusal)
		}
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	undecided := s.undecided
	changed := s.current != old // by Revert
	s.mu.Unlock()
	if changed {
		return o, ErrNoVersion
	}
	if err != nil {
		o.fail(err)
		c = old
	} else {
		o.Result, o.Changed = New, true
		undecided = f.save(s, &o, c, old, undecided, to)
	}
	o.Entries, o.Ended = c.entries.Len(), time.Now()
	f.conclude(s, c, &o, undecided)
	return o, nil
}

// before returns the contents before those of a source, and writes them in the format of
// lists, and beside them the difference to those that are left.
func (s *source) before(c *contents, to io.Writer) (*contents, error) {
	f, all := s.openVersions(c)
	if f == nil {
		return nil, ErrNoVersion
	}
	defer f.file.Close()
	if len(all) < 2 {
		return nil, ErrNoVersion
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	parts, err := f.pair(0)
	if err != nil {
		return nil, err
	}
	entries := parts[0]
	if !all[1].Whole {
		entries, _ = c.entries.Apply(list.Delta{Add: parts[0], Remove: parts[1]})
	}
	if entries.Len() != all[1].Entries {
		return nil, fail(Damaged, "%s: %d entries, want %d", f.file.Name(), entries.Len(), all[1].Entries)
	}
	sum := sha256.New()
	n, _ := listfile.Plain(entries).WriteTo(io.MultiWriter(sum, to)) // the spool keeps its first error
	now := time.Now()
	before := &contents{entries: entries, reports: []listfile.Report{{File: s.name}}, resolved: c.resolved}
	before.record = record{
		Source: s.name, Read: now, Entries: entries.Len(), Plain: true, RolledBack: now,
		Files:     []recordFile{{s.name, n}},
		Reference: float64(entries.Len()), ReferredAt: now,
		validator: c.validator, Signed: c.Signed, // of the source's contents
	}
	sum.Sum(before.sum[:0])
	before.SHA256 = hex.EncodeToString(before.sum[:])

	rejected, err := s.rejected(c)
	if err != nil {
		return nil, err
	}
	w := writeParts(rejectedPath(s.saved), before)
	defer w.to.discard()
	w.Versions = []version{versionOf(before, now)}
	rejected = append([]refused{{all[0], c.entries}}, rejected[:min(len(rejected), maxVersions-1)]...)
	rejected[0].Refusal, rejected[0].Saved = "rolled back at "+now.UTC().Format(time.RFC3339), ""
	for _, other := range rejected {
		d := other.entries.Diff(entries)
		other.Added, other.Removed = d.Add.Len(), d.Remove.Len()
		w.Versions = append(w.Versions, other.version)
		w.add(d.Add, d.Remove)
	}
	return before, w.finish()
}

// rejected returns the contents that an operator has returned from to those that are active.
func (s *source) rejected(c *contents) (all []refused, err error) {
	if c == nil || c.RolledBack.IsZero() {
		return nil, nil
	}
	path := rejectedPath(s.saved)
	f := openBeside(path, c)
	if f == nil {
		return nil, fail(Damaged, "%s: the refused contents are not known (refresh --accept takes those of the source)", path)
	}
	defer f.file.Close()
	return f.refused(c)
}

// refused are contents that a source had, and that were not taken or not kept.
type refused struct {
	version
	entries *list.Set
}

// refused returns the contents in a file beside the active ones.
func (s *saved) refused(c *contents) (all []refused, err error) {
	if len(s.Versions) != 1+len(s.Files)/2 {
		return nil, fail(Damaged, "%s: %d versions of %d parts", s.file.Name(), len(s.Versions), len(s.Files))
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	for n, v := range s.Versions[1:] {
		d, err := s.pair(n)
		if err != nil {
			return nil, err
		}
		entries, _ := c.entries.Apply(list.Delta{Add: d[0], Remove: d[1]})
		all = append(all, refused{v, entries})
	}
	return all, nil
}

// rememberRefused saves contents that a limit has refused for their entries, so that an operator
// can look at these. Its errors change nothing: the caller reports the refusal.
func (f *Feed) rememberRefused(s *source, c, old *contents, err error) {
	var o Outcome
	if o.fail(err); c == nil || old == nil || !f.hasVersions(s) || o.Failure != Shrunk && o.Failure != Grown && o.Failure != Refused {
		return
	}
	if was := openBeside(refusedPath(s.saved), old); was != nil {
		defer was.file.Close()
		if v := was.Versions; len(v) == 2 && v[1].SHA256 == c.SHA256 && v[1].Refusal == o.Err.Error() {
			return
		}
	}
	w := writeParts(refusedPath(s.saved), old)
	defer w.to.discard()
	d := c.entries.Diff(old.entries)
	one := versionOf(c, c.Read)
	one.Added, one.Removed, one.Refusal = d.Add.Len(), d.Remove.Len(), o.Err.Error()
	w.Versions = []version{versionOf(old, old.Read), one}
	w.add(d.Add, d.Remove)
	if w.finish() == nil {
		_ = durable.Rename(next(refusedPath(s.saved)), refusedPath(s.saved)) // else it is found beside it
	}
}

// forgetRefused removes refused contents that were compared with others than those that are active.
func (s *source) forgetRefused(c *contents) {
	if was := openBeside(refusedPath(s.saved), c); was != nil {
		was.file.Close()
		return
	}
	_ = os.Remove(refusedPath(s.saved))
	_ = os.Remove(next(refusedPath(s.saved)))
}

// rejects reports whether contents are like others that an operator has returned from: at least
// half of the difference is here, too. Many sources change each time that
// they are read.
func (s *source) rejects(old, c *contents) (bool, error) {
	rejected, err := s.rejected(old)
	for _, other := range rejected {
		d := other.entries.Diff(old.entries)
		undone := d.Add.Diff(c.entries).Add.Len() + d.Remove.Len() - d.Remove.Diff(c.entries).Add.Len()
		if 2*undone <= d.Len() {
			return true, nil
		}
	}
	return false, err
}
