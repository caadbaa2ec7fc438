package feed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math"
	"strings"
	"time"

	"weir/control/list/listfile"
	"weir/filter/key"
)

// Origin is the place that an entry comes from.
type Origin struct {
	Source string // of a directory, the file; "": the feed does not have the entry
	Line   int    // from 1; 0: not known, as the contents cannot be read again or have no lines

	// Listed is since when the source lists the entry, as far as versions are remembered, or
	// with Earlier, a time when it already did; zero: unknown.
	Listed  time.Time
	Earlier bool

	// What is known of an entry of CrowdSec, or of a fleet's list.
	Added   time.Time // zero: unknown
	Expires time.Time // zero: unknown, or never
	Reason  string
	By      string // who has decided it
}

// Find returns where the entries of some keys come from, each in the first place
// that has it. An address or a prefix is found by its key on either side, as the
// list's direction decides which are matched.
//
// Find reads what was saved, or a file that has not changed, which takes about as
// long as reading the feed: the source may serve something else by now.
func (f *Feed) Find(keys []key.Key) []Origin {
	origins := make([]Origin, len(keys))
	for _, s := range f.sources {
		s.mu.Lock()
		c, kept, name := s.current, false, s.name
		if c == nil {
			c, kept, name = s.former, true, "kept until "+s.name+" is read"
		}
		s.mu.Unlock()
		if c == nil {
			continue
		}
		var here []int
		for i, k := range keys {
			if origins[i].Source == "" && c.entries.Has(k) {
				origins[i].Source = name
				here = append(here, i)
			}
		}
		switch {
		case kept: // nothing else is known: the source was another
		case f.Format.Kind == CrowdSec: // its lines are not the server's
			c.decide(here, keys, origins)
		case len(here) > 0 && c.saved:
			f.findPlaces(s, c, here, keys, origins)
			s.findAges(c, here, keys, origins)
		}
	}
	return origins
}

// findPlaces finds the lines of the keys that are here, by their index, or the records or
// names.
func (f *Feed) findPlaces(s *source, c *contents, here []int, keys []key.Key, origins []Origin) {
	b := s.again(c)
	if b == nil {
		return // the next attempt to load it reports why
	}
	defer b.Close()
	switch {
	case f.Format.Kind.row().made && !c.Plain:
		findReasons(b, here, keys, origins)
	case f.Format.Kind == MMDB && s.written == nil && !c.Plain:
		f.findRecords(s, b, here, keys, origins)
	default:
		f.findLines(s, b, here, keys, origins)
	}
}

// findAges finds since when the keys that are here, by their index, are listed.
func (s *source) findAges(c *contents, here []int, keys []key.Key, origins []Origin) {
	if s.saved == "" || len(here) == 0 {
		return
	}
	if a := s.ages(c); a != nil {
		for _, i := range here {
			origins[i].Listed, origins[i].Earlier = a.listed(keys[i])
		}
	}
}

// findLines finds the lines of the keys that are here, by their index.
func (f *Feed) findLines(s *source, b *known, here []int, keys []key.Key, origins []Origin) {
	left := int64(math.MaxInt64)
	o := f.options(0)
	o.ToEnd = true
	for _, p := range b.parts {
		r, err := p.open()
		if err != nil {
			return
		}
		// Cannot fail: it was read before.
		_, _, _ = s.readerOf(b.plain).scan(p.name, r, &left, o, func(number int, l listfile.Line) bool {
			missing := 0
			for _, i := range here {
				if origins[i].Line == 0 && l.Has(keys[i]) {
					origins[i] = Origin{Source: p.name, Line: number, Reason: asWritten(l)}
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

// asWritten returns a line with a range of ports, of which an entry is one port.
func asWritten(l listfile.Line) string {
	const most = 120 // bytes
	families := len(l.Flows) == 2 && l.Flows[0].V6() != l.Flows[1].V6()
	if len(l.Flows) < 2 || families || len(l.Text) > most {
		return ""
	}
	return strings.TrimSpace(string(l.Text))
}

// known are contents that are read again.
type known struct {
	*body
	io.Closer
}

// again opens the bytes of the contents: those that were saved, or files whose
// contents are still the same. It returns nil if there are none.
func (s *source) again(c *contents) *known {
	if s.saved != "" {
		if saved, err := openSaved(s.saved); err == nil && saved != nil {
			if saved.SHA256 == c.SHA256 { // otherwise it is older, or was replaced just now
				return &known{saved.body(), saved.file}
			}
			saved.file.Close()
		}
	}
	if s.URL != "" || isStream(string(s.File)) {
		return nil
	}
	b, err := s.files(context.Background(), validator{}, false)
	if err != nil {
		return nil
	}
	sum := sha256.New()
	for _, p := range b.parts {
		r, err := p.open()
		if err != nil {
			return nil
		}
		_, err = io.Copy(sum, io.LimitReader(r, int64(s.MaxBytes)+1))
		r.Close()
		if err != nil {
			return nil
		}
	}
	if hex.EncodeToString(sum.Sum(nil)) != c.SHA256 {
		return nil
	}
	return &known{b, io.NopCloser(nil)}
}
