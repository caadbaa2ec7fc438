package feed

import (
	"math"

	"weir/control/list"
)

// Origin is where an entry comes from.
type Origin struct {
	Source string // of a directory, the file; "": the feed does not hold the entry
	Line   int    // there, from 1; 0: not known, for what is in force is not saved, or has no lines
}

// Find says where entries that are in force stand, each in the first place that
// has it. An entry is known by a function that tells whether it is among others.
// It reads what was saved, which takes about as long as reading the feed: not what
// the source may serve by now.
func (f *Feed) Find(entries []func(list.Entries) bool) []Origin {
	origins := make([]Origin, len(entries))
	for _, s := range f.sources {
		s.mu.Lock()
		c := s.held
		s.mu.Unlock()
		if c == nil {
			continue
		}
		var here []int
		for i, among := range entries {
			if origins[i].Source == "" && among(c.entries) {
				origins[i].Source = s.name
				here = append(here, i)
			}
		}
		if len(here) > 0 && c.saved && f.Format.Kind != CrowdSec { // whose lines are not the server's
			f.findLines(s, c, here, entries, origins)
		}
	}
	return origins
}

// findLines looks for the lines of those entries that are here.
func (f *Feed) findLines(s *source, c *contents, here []int, entries []func(list.Entries) bool, origins []Origin) {
	saved, err := openSaved(s.saved)
	if saved == nil || err != nil {
		return // the next attempt to load it says why
	}
	defer saved.file.Close()
	if saved.SHA256 != c.SHA256 {
		return // others have come into force just now
	}
	left := int64(math.MaxInt64)
	for _, p := range saved.body().parts {
		r, err := p.open()
		if err != nil {
			return
		}
		// It was read before, and so cannot fail now.
		_, _, _ = f.format.scan(p.name, r, &left, f.options(), func(line int, e list.Entries) bool {
			missing := 0
			for _, i := range here {
				if origins[i].Line == 0 && entries[i](e) {
					origins[i] = Origin{p.name, line}
				}
				if origins[i].Line == 0 {
					missing++
				}
			}
			return missing > 0
		})
		r.Close()
	}
}
