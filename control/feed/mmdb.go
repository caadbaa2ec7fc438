package feed

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"weir/control/compressed"
	"weir/control/geo"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
)

var mmdbFormat = format{
	Description: Description{
		Name: "mmdb", Options: []string{"countries", "except", "asns"}, Example: "{kind: mmdb, countries: [KP, RU]}",
		About:   "networks of countries or autonomous systems in a database in MaxMind's format",
		Grammar: "A [database](#countries-and-autonomous-systems) is no text. The networks of the selected countries or systems are entries; other networks are left out. A country or system without any network in the database is an error.",
	},
	needs: []string{"countries", "except", "asns"}, whole: (*reader).mmdb,
}

// Country is the code of a country by ISO 3166-1, as in DE.
type Country string

// UnmarshalText sets the code.
func (c *Country) UnmarshalText(text []byte) error {
	s := string(text)
	if len(s) != 2 || strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return fmt.Errorf("country %q: want its code of two capital letters, as in DE", s)
	}
	*c = Country(s)
	return nil
}

// ASN is the number of an autonomous system.
type ASN uint32

// MarshalText returns the number as in AS64496.
func (a ASN) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

func (a ASN) String() string { return "AS" + strconv.FormatUint(uint64(a), 10) }

// UnmarshalText sets the number, with or without AS before it.
func (a *ASN) UnmarshalText(text []byte) error {
	s := string(text)
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "AS"), 10, 32)
	if err != nil || n == 0 {
		return fmt.Errorf("autonomous system %q: want its number, as in AS64496", s)
	}
	*a = ASN(n)
	return nil
}

// selects reports whether a network with that record is read. Networks without a country
// are in no country, nor in another one.
func (f Format) selects(r geo.Record) bool {
	switch {
	case len(f.ASNs) > 0:
		return slices.Contains(f.ASNs, ASN(r.ASN))
	case r.Country == "":
		return false
	case len(f.Except) > 0:
		return !slices.Contains(f.Except, Country(r.Country))
	}
	return slices.Contains(f.Countries, Country(r.Country))
}

// mmdb reads a database. Each of the countries and autonomous systems that are selected
// must be in it: without one, a mistake would make the list empty, or too large.
func (f *reader) mmdb(name string, src io.Reader, o listfile.Options, shift *listfile.Shift) (list.Entries, listfile.Report, error) {
	report := listfile.Report{File: name}
	contents, err := io.ReadAll(src)
	var prefixes []netip.Prefix
	countries, asns := make(map[Country]bool), make(map[ASN]bool)
	if err == nil {
		prefixes, err = geo.Prefixes(contents, func(r geo.Record) bool {
			countries[Country(r.Country)], asns[ASN(r.ASN)] = true, true
			return f.selects(r)
		}, o.MaxEntries, func() error { return cmp.Or(shift.Check(), o.Work.Err()) })
	}
	if err == nil {
		err = f.checkFound(countries, asns)
	}
	if err == nil && len(prefixes) == 0 {
		err = errors.New("the database has no network but those that are left out")
	}
	if errors.Is(err, geo.ErrTooMany) {
		err = fmt.Errorf("%w: more than %d", listfile.ErrTooManyEntries, o.MaxEntries)
	}
	if err != nil {
		return list.Entries{}, report, fmt.Errorf("%s: %w", name, err)
	}
	var entries list.Entries
	for _, p := range prefixes {
		if p.Addr().Is4() {
			entries.V4 = append(entries.V4, list.V4Of(p))
		} else {
			entries.V6 = append(entries.V6, p)
		}
	}
	report.Good, report.Lines = len(prefixes), len(prefixes)
	return entries, report, nil
}

// checkFound returns an error if what is selected is not in a database with these
// countries and autonomous systems.
func (f Format) checkFound(countries map[Country]bool, asns map[ASN]bool) error {
	delete(countries, "")
	delete(asns, 0)
	switch {
	case len(f.ASNs) == 0 && len(countries) == 0:
		return errors.New("the database has no countries: name one of countries")
	case len(f.ASNs) > 0 && len(asns) == 0:
		return errors.New("the database has no autonomous systems: name one of those")
	}
	for _, c := range slices.Concat(f.Countries, f.Except) {
		if !countries[c] {
			return fmt.Errorf("the database has no network of country %s, only of %d others", c, len(countries))
		}
	}
	for _, a := range f.ASNs {
		if !asns[a] {
			return fmt.Errorf("the database has no network of %v", a)
		}
	}
	return nil
}

// findRecords says which countries or autonomous systems the keys that are here, by
// their index, are of.
func (f *Feed) findRecords(s *source, b *known, here []int, keys []key.Key, origins []Origin) {
	for _, p := range b.parts {
		contents, err := p.contents(int64(s.MaxBytes))
		if err != nil {
			return // it was read before, and is another one by now
		}
		for _, i := range here {
			prefix, _ := list.PrefixOf(keys[i])
			if r, err := geo.Lookup(contents, prefix.Addr()); err == nil && f.Format.selects(r) {
				origins[i].Source, origins[i].Reason = p.name, f.Format.reason(r)
			}
		}
	}
}

// reason returns the country or the autonomous system for which a network is selected.
func (f Format) reason(r geo.Record) string {
	if len(f.ASNs) > 0 {
		return ASN(r.ASN).String()
	}
	return "country " + r.Country
}

// contents returns a part's bytes, decompressed, of which it may have most.
func (p part) contents(most int64) ([]byte, error) {
	r, err := p.open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	text, err := compressed.NewReader(r)
	if err != nil {
		return nil, err
	}
	defer text.Close()
	return io.ReadAll(io.LimitReader(text, most))
}
