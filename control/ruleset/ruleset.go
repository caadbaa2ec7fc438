// Package ruleset reads what a user wants filtered: lists in files, and how
// packets are held against them.
package ruleset

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/verdict"
)

// Rules are what a user wants filtered. The zero Rules block nothing.
type Rules struct {
	Block, Allow []string         // the lists' files
	Direction    engine.Direction // of addresses and prefixes in the lists
	Lenient      bool             // mask host bits in prefixes
	MaxBad       Share            // of bad lines, above which a file is refused; 0: list.DefaultMaxBad
	engine.Config
}

// Source is a list and the file that it comes from.
type Source struct {
	engine.List
	File    string
	Size    int64     // of a regular file, before it was read
	Written time.Time // when a regular file was last changed before it was read
	Wide    string    // a prefix that holds half of its family or more, "" if none does
	Report  list.Report
}

// Loaded is what the files of some rules hold.
type Loaded struct {
	Rules   Rules
	Sources []Source // list number i+1 is Sources[i]
}

// Progress is told the file that is being read, and how many of its bytes have
// been; total is 0 where the size is unknown.
type Progress func(file string, done, total int64)

// Load reads the lists. It fails where a file cannot be read or is refused, or
// where the rules contradict the filter's limits. progress may be nil.
func (r Rules) Load(progress Progress) (*Loaded, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	l := &Loaded{Rules: r}
	for _, kind := range []struct {
		files []string
		allow bool
	}{{r.Block, false}, {r.Allow, true}} {
		for _, file := range kind.files {
			if err := l.add(file, kind.allow, progress); err != nil {
				return nil, err
			}
		}
	}
	return l, nil
}

func (l *Loaded) add(file string, allow bool, progress Progress) error {
	o := list.Options{Lenient: l.Rules.Lenient, MaxBad: float64(l.Rules.MaxBad)}
	if progress != nil {
		o.Progress = func(done, total int64) { progress(file, done, total) }
	}
	s := Source{
		List: engine.List{Name: l.name(file), Allow: allow, Direction: l.Rules.Direction},
		File: file,
	}
	// Before it is read: what is written meanwhile counts as a change.
	if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() {
		s.Size, s.Written = st.Size(), st.ModTime()
	}
	entries, report, err := list.Load(file, o)
	if err != nil {
		return err
	}
	s.Wide, s.Report = wide(entries), report
	s.Contents = entries.Set()
	l.Sources = append(l.Sources, s)
	return nil
}

// wide finds a prefix that holds half of its family or more.
func wide(e list.Entries) string {
	for _, p := range e.V4 {
		if p.Bits() <= 1 {
			return p.Prefix().String()
		}
	}
	for _, p := range e.V6 {
		if p.Bits() <= 1 {
			return p.String()
		}
	}
	for _, k := range e.Flows {
		if k.Fields&^key.FieldV6 == 0 && k.SrcBits <= 1 && k.DstBits <= 1 {
			return k.String()
		}
	}
	return ""
}

// name is what a list is called: its file's name without directory and
// extensions, told apart by a number where another list has it already.
func (l *Loaded) name(file string) string {
	base := filepath.Base(file)
	for _, packed := range []string{".gz", ".zst"} {
		base = strings.TrimSuffix(base, packed)
	}
	if stem := strings.TrimSuffix(base, filepath.Ext(base)); stem != "" {
		base = stem
	}
	name := base
	for n := 2; l.named(name); n++ {
		name = fmt.Sprintf("%s-%d", base, n)
	}
	return name
}

func (l *Loaded) named(name string) bool {
	for _, s := range l.Sources {
		if s.Name == name {
			return true
		}
	}
	return false
}

// Lists returns the lists with their contents.
func (l *Loaded) Lists() []engine.List {
	lists := make([]engine.List, len(l.Sources))
	for i, s := range l.Sources {
		lists[i] = s.List
	}
	return lists
}

// SetContents gives each list the contents of that of the same number.
func (l *Loaded) SetContents(lists []engine.List) {
	for i := range l.Sources {
		l.Sources[i].Contents = lists[i].Contents
	}
}

// Entries is the number of entries of all lists.
func (l *Loaded) Entries() int {
	n := 0
	for _, s := range l.Sources {
		n += s.Contents.Len()
	}
	return n
}

// BlockEntries is the number of entries of the block lists.
func (l *Loaded) BlockEntries() int {
	n := 0
	for _, s := range l.Sources {
		if !s.Allow {
			n += s.Contents.Len()
		}
	}
	return n
}

// TooWide fails where a block list has a prefix that holds half of its family
// or more: few want that, and a feed that is broken or forged may say it.
func (l *Loaded) TooWide() error {
	for _, s := range l.Sources {
		if !s.Allow && s.Wide != "" {
			family := "IPv4"
			if strings.Contains(s.Wide, "::") {
				family = "IPv6"
			}
			return fmt.Errorf("%s: %s would block half of %s or more: --monitor to watch it first, --wide to insist",
				s.File, s.Wide, family)
		}
	}
	return nil
}

// Warnings are what is wrong with the files, though they were not refused: bad
// lines, and files without any entry.
func (l *Loaded) Warnings() []string {
	var w []string
	for _, s := range l.Sources {
		for _, e := range s.Report.Errors {
			w = append(w, e.Error())
		}
		if more := s.Report.Bad - len(s.Report.Errors); more > 0 {
			w = append(w, fmt.Sprintf("%s: %d more bad lines", s.File, more))
		}
		if s.Contents.Len() == 0 {
			w = append(w, fmt.Sprintf("%s: the list has no entries", s.File))
		}
	}
	return w
}

func (r *Rules) validate() error {
	var v4, v6 int
	for _, p := range r.FailsafePrefixes {
		if p.Addr().Is4() {
			v4++
		} else {
			v6++
		}
	}
	if max(len(r.FailsafePorts), v4, v6) > verdict.MaxFailsafe {
		return fmt.Errorf("failsafe: more than %d ports, or prefixes of a family", verdict.MaxFailsafe)
	}
	if r.BitsPerKey != 0 && !(r.BitsPerKey >= 1 && r.BitsPerKey <= 256) {
		return fmt.Errorf("bits per entry: %v is not between 1 and 256", r.BitsPerKey)
	}
	if r.MaxBad > 1 {
		return errors.New("share of bad lines: above 100 %")
	}
	return nil
}
