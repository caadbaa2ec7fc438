package feed

import (
	"context"
	"fmt"
	"time"

	"weir/control/durable"
	"weir/control/list/listfile"
)

// The entries that a source keeps until it is read are a file beside its saved contents, of the form of
// a saved source: one part, in the format of lists, then the record, which describes it.

const (
	// formerAge is the age from which such a file is ignored. It was left behind then, as where the list got
	// its earlier settings back.
	formerAge = 30 * 24 * time.Hour

	// formerAgain is the interval at which they are saved while a feed keeps them, so that they do not age.
	formerAgain = 24 * time.Hour
)

func formerPath(saved string) string { return saved + ".former" }

// saveFormer saves the entries that a source keeps until it is read, so that a restart before that has
// them, too.
func (f *Feed) saveFormer(s *source) error {
	if s.saved == "" || f.ReadOnly {
		return nil
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	c := s.former
	is := c != nil && s.current == nil && (c != s.savedFormer || time.Since(s.formerSaved) > formerAgain)
	s.mu.Unlock()
	if !is {
		return nil
	}
	now := time.Now()
	if err := f.writeFormer(formerPath(s.saved), c, now); err != nil {
		return fmt.Errorf("entries of before: %w", err)
	}
	s.mu.Lock()
	s.savedFormer, s.formerSaved = c, now
	s.mu.Unlock()
	return nil
}

func (f *Feed) writeFormer(path string, c *contents, now time.Time) error {
	w := writeParts(path, c)
	defer w.to.discard()
	w.Read, w.Purpose, w.Accepted = now, f.Purpose, c.Accepted
	w.add(c.entries)
	if err := w.finish(); err != nil {
		return err
	}
	defer writing.take(context.Background())()
	return durable.Rename(next(path), path)
}

// loadFormer has a source keep what saveFormer has saved, unless it was read since. Saved contents of before
// may be in another format, in which they have no entries. What is damaged is not used, nor what a list of
// another purpose had: an allow list may have become one that blocks.
func (f *Feed) loadFormer(ctx context.Context, s *source) error {
	if s.current != nil && s.current.entries.Len() > 0 {
		return nil
	}
	old, err := openSaved(formerPath(s.saved))
	if old == nil {
		return err
	}
	defer old.file.Close()
	if old.Purpose != f.Purpose {
		return fmt.Errorf("%s: of a list that was another", old.file.Name())
	}
	if time.Since(old.Read) > formerAge {
		return fmt.Errorf("%s: left behind, of %v", old.file.Name(), old.Read)
	}
	if err := old.check(); err != nil {
		return err
	}
	all, _, err := listfile.Parse(old.file.Name(), old.text(), listfile.Options{
		MaxBad: -1, MaxEntries: Source{}.maxEntries(Plain, memory()), Work: listfile.NewWork(ctx, 0),
	})
	if err != nil {
		return err
	}
	s.former = &contents{entries: all.Set()}
	s.former.Accepted = old.Accepted
	s.savedFormer, s.formerSaved = s.former, old.Read
	if s.current != nil {
		s.current, s.last = nil, Outcome{Source: s.name}
	}
	return nil
}

// ForgetFormer forgets the former entries that were loaded from disk: a feed that goes on has newer ones.
// The feed must not run.
func (f *Feed) ForgetFormer() {
	for _, s := range f.sources {
		s.mu.Lock()
		s.former, s.savedFormer = nil, nil
		s.mu.Unlock()
	}
}
