package feed

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"weir/control/durable"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
)

// The ages of a saved source's entries are a file beside it: a line with the checksum of the
// contents that they are of, and a time at which all entries were listed that follow in no
// era; then the eras, the latest first, each with a line about it and the entries that the
// source has listed since then, in the format of lists.

// ages says since when entries are listed.
type ages struct {
	of     string    // the SHA-256 of the contents
	before time.Time // entries of no era were listed then, or earlier
	eras   []era     // the latest first
}

// era has the entries that came with one version of a source, and are still there.
type era struct {
	since   time.Time
	entries *list.Set
}

const (
	agesHeader = "weir ages 1"
	eraHeader  = "@"

	// leastAged is how many entries have an age at least; of a larger source, one of
	// agedShare has one. The others were listed before.
	leastAged = 1 << 16
	agedShare = 8
)

func agesPath(saved string) string { return saved + ".ages" }

// age completes the ages of contents that are about to be saved, given the contents that are
// saved so far, and the difference. It reports its errors by leaving them out: they are no
// reason not to take the contents.
func (f *Feed) age(s *source, c, former *contents, delta list.Delta) {
	if f.Format.Kind == CrowdSec { // which says since when itself
		return
	}
	path := agesPath(s.saved)
	if complete, err := readAges(next(path)); err == nil && complete.of == former.SHA256 {
		_ = durable.Rename(next(path), path) // which a crash has kept promote from
	}
	known := s.ages(former)
	if known == nil {
		known = &ages{before: former.Read}
	}
	a := ages{of: c.SHA256, before: known.before}
	if delta.Add.Len() > 0 {
		a.eras = append(a.eras, era{c.Read, delta.Add})
	}
	for _, e := range known.eras {
		if left, _ := e.entries.Apply(list.Delta{Remove: delta.Remove}); left.Len() > 0 {
			a.eras = append(a.eras, era{e.since, left})
		}
	}
	a.bound(max(leastAged, c.entries.Len()/agedShare))
	defer writing.take(context.Background())()
	to, err := durable.Create(path + ".tmp")
	if err != nil {
		return
	}
	w := bufio.NewWriterSize(to, 64<<10)
	a.write(w)
	if err := errors.Join(w.Flush(), to.Replace(next(path)), to.Close()); err != nil {
		to.Discard()
	}
}

// bound forgets the oldest eras, so that no more than a number of entries have an age.
func (a *ages) bound(entries int) {
	n := 0
	for i, e := range a.eras {
		if n += e.entries.Len(); n > entries {
			a.before, a.eras = e.since, a.eras[:i]
			return
		}
	}
}

func (a *ages) write(w io.Writer) {
	fmt.Fprintf(w, "%s %s %s\n", agesHeader, a.of, a.before.UTC().Format(time.RFC3339Nano))
	for _, e := range a.eras {
		fmt.Fprintf(w, "%s %s\n", eraHeader, e.since.UTC().Format(time.RFC3339Nano))
		_, _ = listfile.Plain(e.entries).WriteTo(w) // w keeps its first error
	}
}

// ages returns the ages of contents, nil where they are not known.
func (s *source) ages(c *contents) *ages {
	path := agesPath(s.saved)
	for _, path := range []string{path, next(path)} { // a crash may have come between two renames
		if a, err := readAges(path); err == nil && a.of == c.SHA256 {
			return a
		}
	}
	if !c.First.IsZero() {
		return &ages{of: c.SHA256, before: c.First}
	}
	return nil
}

func readAges(path string) (*ages, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 64<<10)
	a := &ages{}
	var entries bytes.Buffer
	end := func() error {
		if len(a.eras) == 0 {
			return nil
		}
		all, _, err := listfile.Parse(path, &entries, listfile.Options{})
		a.eras[len(a.eras)-1].entries = all.Set()
		return err
	}
	for n := 0; ; n++ {
		line, err := in.ReadString('\n')
		if err == io.EOF && line == "" {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: torn: %w", path, err)
		}
		switch header, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " "); {
		case n == 0:
			var at string
			if _, err := fmt.Sscanf(line, agesHeader+" %s %s\n", &a.of, &at); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			if a.before, err = time.Parse(time.RFC3339Nano, at); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		case header == eraHeader:
			if err := end(); err != nil {
				return nil, err
			}
			entries.Reset()
			since, err := time.Parse(time.RFC3339Nano, rest)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			a.eras = append(a.eras, era{since: since})
		default:
			entries.WriteString(line)
		}
	}
	if a.of == "" {
		return nil, fmt.Errorf("%s: empty", path)
	}
	return a, end()
}

// listed returns since when an entry of the contents is listed; with earlier, then or before.
func (a *ages) listed(k key.Key) (since time.Time, earlier bool) {
	for _, e := range a.eras {
		if e.entries.Has(k) {
			return e.since, false
		}
	}
	return a.before, true
}

// Age is since when some entries are listed.
type Age struct {
	Since   time.Time // zero: unknown
	Earlier bool      // or before
	Entries int
}

// Ages returns since when the entries of all sources are listed. It reads what was saved of that.
func (f *Feed) Ages() (all []Age) {
	for s, c := range f.loaded() {
		left := c.entries.Len()
		add := func(a Age) {
			all, left = append(all, a), left-a.Entries
		}
		if f.Format.Kind == CrowdSec {
			for _, by := range c.decisions {
				add(Age{Since: by.Added, Entries: 1})
			}
		} else if s.saved != "" && c.saved {
			if a := s.ages(c); a != nil {
				for _, e := range a.eras {
					add(Age{Since: e.since, Entries: e.entries.Len()})
				}
				add(Age{Since: a.before, Earlier: true, Entries: left})
			}
		}
		if left > 0 {
			all = append(all, Age{Entries: left})
		}
	}
	return all
}
