package feed

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"weir/control/durable"
	"weir/control/list/listfile"
)

// formerPath returns the path of the entries that a source keeps until it is read, beside its saved
// contents.
func formerPath(saved string) string { return saved + ".former" }

const formerHeader = "# weir former 1"

// formerLine returns the first line of such a file. What another purpose had must not come back: an
// allow list may have become one that blocks.
func (f *Feed) formerLine(accepted bool, body []byte) string {
	return fmt.Sprintf("%s %q %t %x\n", formerHeader, f.Purpose, accepted, sha256.Sum256(body))
}

// saveFormer saves the entries that a source keeps until it is read, so that a restart before that has
// them, too.
func (f *Feed) saveFormer(s *source) error {
	if s.saved == "" || f.ReadOnly {
		return nil
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	c, path := s.former, formerPath(s.saved)
	is := c != nil && s.current == nil && c != s.savedFormer
	s.mu.Unlock()
	if !is {
		return nil
	}
	var body bytes.Buffer
	_, _ = listfile.Plain(c.entries).WriteTo(&body) // which does not fail
	defer writing.take(context.Background())()
	err := durable.MkdirAll(filepath.Dir(path))
	if err == nil {
		err = durable.WriteFile(path, append([]byte(f.formerLine(c.Accepted, body.Bytes())), body.Bytes()...))
	}
	if err != nil {
		return fmt.Errorf("entries of before are not saved: %w", err)
	}
	s.mu.Lock()
	s.savedFormer = c
	s.mu.Unlock()
	return nil
}

// loadFormer has a source keep what saveFormer has saved, unless it was read since. Saved contents of before
// may be in another format, in which they have no entries. What is damaged is not used.
func (f *Feed) loadFormer(s *source) error {
	path := formerPath(s.saved)
	if s.current != nil && s.current.entries.Len() > 0 {
		return nil
	}
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewReader(file)
	line, err := in.ReadString('\n')
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	body, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	accepted := line == f.formerLine(true, body)
	if !accepted && line != f.formerLine(false, body) {
		return fmt.Errorf("%s: damaged, or of a list that was another", path)
	}
	all, _, err := listfile.Parse(path, bytes.NewReader(body), listfile.Options{Lenient: true})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	s.former = &contents{entries: all.Set()}
	s.former.Accepted = accepted
	s.savedFormer = s.former
	if s.current != nil {
		s.current, s.last = nil, Outcome{Source: s.name}
	}
	return nil
}

// ForgetFormer forgets the entries that sources keep since they were saved: a feed that goes on knows them
// better. The feed must not run.
func (f *Feed) ForgetFormer() {
	for _, s := range f.sources {
		s.mu.Lock()
		s.former, s.savedFormer = nil, nil
		s.mu.Unlock()
	}
}
