package feed

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"weir/control/geo"
	"weir/control/list/listfile"
)

// Bounds of lists of autonomous systems. There are some 120,000 in the Internet.
const (
	maxASNs     = 200_000
	maxASNBytes = 32 << 20 // of a source's text
)

var asnsFormat = format{
	Description: Description{
		Name: "asns", Options: []string{"database"}, Example: "{kind: asns, database: /PATH.mmdb}",
		About:   "autonomous systems, whose networks a database has; Spamhaus ASN-DROP, too",
		Grammar: "A [system](#countries-and-autonomous-systems) a line, by its number, with or without `AS`, or an object with `asn`. `#` and `;` begin remarks. A system without a network in the database is bad.",
	},
	needs: []string{"database"}, made: true,
}

// asnLines are the autonomous systems of a part, by their lines.
type asnLines struct {
	lines  map[ASN]int
	report listfile.Report
}

// systems returns a body in the list format, a prefix a line with its autonomous system as
// a comment, for a body of autonomous systems, and what is to be reported of each part.
func (f *Feed) systems(w *listfile.Work, s *source, b *body) (*body, []listfile.Report, error) {
	var parts []asnLines
	wanted := make(map[ASN]bool)
	for _, p := range b.parts {
		l, err := p.asns()
		if err != nil {
			return nil, nil, err
		}
		for a := range l.lines {
			wanted[a] = true
		}
		if len(wanted) > maxASNs {
			return nil, nil, fail(TooLarge, "%s: more than %d autonomous systems", s.name, maxASNs)
		}
		parts = append(parts, l)
	}
	database, err := geo.ReadFile(string(f.Format.Database))
	if err != nil {
		return nil, nil, fail(Unreachable, "database: %w", err)
	}
	shift := w.Begin()
	defer shift.End()
	var text bytes.Buffer
	found := make(map[ASN]bool)
	err = geo.Each(database, func(p netip.Prefix, r geo.Record) {
		if a := ASN(r.ASN); wanted[a] {
			found[a] = true
			fmt.Fprintf(&text, "%v # %v\n", p, a)
		}
	}, func() error { return errors.Join(shift.Check(), w.Err()) })
	if err != nil {
		return nil, nil, fail(Unreachable, "database %s: %w", f.Format.Database, err)
	}
	var reports []listfile.Report
	for _, l := range parts {
		for a, line := range l.lines {
			if !found[a] {
				addBad(&l.report, line, a.String(), errors.New("no network in the database"))
			}
		}
		reports = append(reports, l.report)
	}
	if len(found) == 0 && len(wanted) > 0 {
		return nil, nil, fail(Refused, "%s: the database has no network of any of %d autonomous systems", s.name, len(wanted))
	}
	made := *b
	made.parts, made.validator = []part{{s.name, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil }}}, validator{}
	return &made, reports, nil
}

// asns reads the autonomous systems of a part: one a line, by its number, or an object with
// a field asn, as Spamhaus has it.
func (p part) asns() (asnLines, error) {
	l := asnLines{lines: make(map[ASN]int)}
	records, stated := 0, -1
	var err error
	l.report, err = p.eachLine(maxASNBytes, func(line int, text string) (bool, error) {
		var object asnObject
		if text[0] == '{' && json.Unmarshal([]byte(text), &object) == nil {
			if object.Type == "metadata" {
				stated = object.Records
				return false, nil
			}
			records++
			text = object.ASN.String()
		}
		if text = withoutRemark(text); text == "" {
			return false, nil
		}
		var a ASN
		if err := a.UnmarshalText([]byte(text)); err != nil {
			return false, err
		}
		if l.lines[a] == 0 {
			l.lines[a] = line
		}
		return true, nil
	})
	switch {
	case err != nil:
		return l, err
	case stated >= 0 && stated != records:
		return l, fail(Truncated, "%d records, but the last line says %d", records, stated)
	case float64(l.report.Bad) > listfile.DefaultMaxBad*float64(l.report.Bad+l.report.Good):
		return l, fmt.Errorf("%s: %w: %w", p.name, listfile.ErrTooManyBad, l.report.Errors[0].Err)
	}
	return l, nil
}

// asnObject is a line of Spamhaus ASN-DROP.
type asnObject struct {
	ASN     json.Number `json:"asn"`
	Type    string      `json:"type"`
	Records int         `json:"records"`
}
