package feed

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"weir/control/list"
	"weir/filter/key"
)

var stixFormat = format{
	Description: Description{
		Name: "stix", Example: "stix", Options: []string{"types", "min_confidence"}, About: "addresses in indicators of STIX 2.1, in bundles",
		Grammar: "Addresses of [patterns](#stix-and-taxii) of valid indicators are entries. Indicators that are benign by `indicator_types` or `labels`, those that are revoked or not valid now, those about something else, and other objects are left out. `types` names the `indicator_types`, or `labels`, to read, and `min_confidence` is the least `confidence`, from 0 to 100. A text with other objects alone is refused. An address with a further condition is bad.",
	},
	made: true, timed: true, read: stix,
}

var taxiiFormat = format{
	Description: Description{
		Name: "taxii", Example: "taxii", Options: []string{"types", "min_confidence"}, About: "the same from a collection of TAXII 2.1", Grammar: "As `stix`.",
	},
	api: true, made: true, timed: true, read: stix,
}

// indicator is the part of an object of STIX 2.1 that matters here.
type indicator struct {
	Type        string     `json:"type"`
	Name        string     `json:"name"`
	Pattern     string     `json:"pattern"`
	PatternType string     `json:"pattern_type"`
	Revoked     bool       `json:"revoked"`
	From        *time.Time `json:"valid_from"`
	Until       *time.Time `json:"valid_until"`
	Types       []string   `json:"indicator_types"`
	Labels      []string   `json:"labels"`
	Confidence  int        `json:"confidence"`
}

// leftOut returns why an object is no indicator to read, "" if it is one.
func (i *indicator) leftOut(f *Format) string {
	types := slices.Concat(i.Types, i.Labels) // STIX 2.0 has these for those
	has := func(t string) bool {
		return slices.ContainsFunc(types, func(of string) bool { return strings.EqualFold(of, t) })
	}
	switch {
	case i.Type != "indicator":
		return "objects of type " + said(i.Type)
	case i.Revoked:
		return "revoked indicators"
	case i.PatternType != "" && i.PatternType != "stix":
		return "indicators with patterns of type " + said(i.PatternType)
	case len(f.Types) > 0 && !slices.ContainsFunc(f.Types, has):
		return "indicators of other types"
	case has("benign") && !slices.Contains(f.Types, "benign"):
		return "benign indicators"
	case i.Confidence < f.MinConfidence:
		return "indicators with less confidence, or without"
	}
	return ""
}

// valid reports whether an indicator holds at a time.
func (i *indicator) valid(now time.Time) bool {
	return (i.From == nil || !i.From.After(now)) && (i.Until == nil || i.Until.After(now))
}

// moment is the time at which indicators are read, and what they say of it.
type moment struct {
	now     time.Time
	active  *list.Set            // entries; nil: none, or they do not matter
	invalid map[key.Key]struct{} // active entries with an indicator that is not valid now
	newest  time.Time            // the last time at which an indicator became valid, or will
	format  *Format              // says which indicators to read
	leave   func(reason string)  // counts what is left out
}

// addresses returns the addresses of an object, none unless it is a valid indicator.
func (m *moment) addresses(i *indicator) ([]string, error) {
	if reason := i.leftOut(m.format); reason != "" {
		m.leave(reason)
		return nil, nil
	}
	if i.From != nil && i.From.After(m.newest) {
		m.newest = *i.From
	}
	if i.valid(m.now) {
		addresses, err := addressesOf(i.Pattern)
		if len(addresses) == 0 && err == nil {
			m.leave("indicators about something else")
		}
		return addresses, err
	}
	m.leave("indicators that are not valid now")
	if m.active == nil {
		return nil, nil
	}
	addresses, _ := addressesOf(i.Pattern)
	for _, a := range addresses {
		p := prefix(a)
		if !p.IsValid() {
			continue
		}
		if k := key.Source(p); m.active.Has(k) {
			if m.invalid == nil {
				m.invalid = make(map[key.Key]struct{})
			}
			m.invalid[k] = struct{}{}
		}
	}
	return nil, nil
}

// confirmed reports whether the indicators show that the clock is not behind: none of them is
// only valid later.
func (m *moment) confirmed() bool { return !m.newest.IsZero() && !m.newest.After(m.now) }

// checkLoss refuses to lose more of the active entries than MaxShrink allows for the time alone:
// the clock may be wrong.
func (f *Feed) checkLoss(c, old *contents, invalid map[key.Key]struct{}) error {
	lost := 0
	for k := range invalid {
		if !c.entries.Has(k) {
			lost++
		}
	}
	if old == nil || float64(lost) <= float64(f.MaxShrink)*float64(old.entries.Len()) {
		return nil
	}
	kind := Shrunk
	if c.entries.Len() == 0 {
		kind = Empty
	}
	return fail(kind, "%d of %d entries are not valid at %s, as the clock says: more than %g%% (refresh --accept or a larger max_shrink accepts it)",
		lost, old.entries.Len(), c.Read.UTC().Format(time.RFC3339), 100*float64(f.MaxShrink))
}

// clockSlack is how far a file's time may be ahead of this host's clock: a server's clock may
// have written it.
const clockSlack = 5 * time.Minute

// checkClock fails where the clock shows a time before the source was last read, given its
// active contents, nil for none, or before its files were changed: a host without a clock of its
// own starts in 1970, when no indicator is valid yet. The clock may also have been in the future
// then, which the indicators can show.
func (s *source) checkClock(old *contents) error {
	check := func(at time.Time, name, what string) error {
		if time.Until(at) <= clockSlack {
			return nil
		}
		return fail(Refused, "the clock is wrong: it says %s, but %s was %s at %s (refresh --accept reads it nevertheless)",
			time.Now().UTC().Format(time.RFC3339), name, what, at.UTC().Format(time.RFC3339))
	}
	if old != nil {
		if err := check(old.Read, s.name, "last read"); err != nil {
			return err
		}
	}
	if s.URL != "" {
		return nil
	}
	paths, _, _ := s.list() // whose error is reported when they are read
	for _, path := range paths {
		if st, err := os.Stat(path); err == nil {
			if err := check(st.ModTime(), path, "changed"); err != nil {
				return err
			}
		}
	}
	return nil
}

// indicators reads bundles of STIX, or envelopes of TAXII, one after another, and hands on the
// addresses and prefixes of the indicators that are valid at a moment, and what is bad. Objects
// without an address are left out.
func indicators(text *lines, m *moment, value func(at place, address, name string), bad func(at place, text string, err error)) error {
	text.offsets = true
	p := newDocument(text, text)
	objects, others := 0, make(map[string]bool)
	object := func() error {
		var i indicator
		err := p.value(&i)
		at := place{text.at(max(p.dec.InputOffset()-1, 0)), p.dec.InputOffset()}
		objects++
		if mistyped := (*json.UnmarshalTypeError)(nil); errors.As(err, &mistyped) || errors.As(err, new(*time.ParseError)) {
			bad(at, "", err)
			return nil
		}
		if err != nil {
			return err
		}
		switch {
		case i.Type == "indicator":
			others = nil // it does not matter then
		case others != nil && len(others) < maxReasons:
			others[said(i.Type)] = true
		}
		addresses, wrong := m.addresses(&i)
		if wrong != nil {
			bad(at, i.Pattern, wrong)
		}
		for _, a := range addresses {
			value(at, a, i.Name)
		}
		return nil
	}
	for {
		if !p.more() {
			t, err := p.dec.Token()
			switch {
			case err == io.EOF && len(others) > 0:
				return fail(Garbage, "no indicators, but %d objects of type %s: weir reads patterns of indicators alone", objects, strings.Join(slices.Sorted(maps.Keys(others)), ", "))
			case err == io.EOF:
				return nil
			case err == nil:
				err = fmt.Errorf("%.60q instead of a bundle", fmt.Sprint(t))
			}
			return err
		}
		err := p.object(func(name string) error {
			if name != "objects" {
				return p.skip()
			}
			return p.array(object)
		})
		if err != nil {
			return fmt.Errorf("a bundle of STIX: %w", err)
		}
	}
}

// stix reads STIX 2.1.
func stix(f *reader, c *collector) error {
	m := &moment{now: time.Now(), format: &f.Format, leave: c.leave}
	return indicators(&c.text, m, func(at place, address, _ string) { c.value(at, address) }, c.bad)
}

// Bounds of a pattern.
const (
	maxPattern      = 64 << 10 // bytes
	maxPatternDepth = 50
)

// meaning has the addresses each of which is enough for an expression of a pattern. It is narrow
// where an address counts under a further condition.
type meaning struct {
	addresses []string
	narrow    bool
	types     bool // it only says that an address is one of IPv4 or IPv6
}

var errNarrow = errors.New("an address with a further condition: to list the address alone would block more")

// addressesOf returns the addresses each of which is a match of a pattern by itself. A pattern
// that asks for more than an address is an error, and one about something else is not.
func addressesOf(pattern string) ([]string, error) {
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("a pattern of more than %d bytes", maxPattern)
	}
	p := &patternParser{rest: pattern}
	p.next()
	m := p.expression(false, 0)
	switch {
	case p.err != nil:
		return nil, p.err
	case p.token != "":
		return nil, fmt.Errorf("%.30q is not expected in a pattern", p.token)
	case m.narrow:
		return m.addresses, errNarrow
	}
	return m.addresses, nil
}

// patternParser reads the patterns of STIX 2.1, section 9.
type patternParser struct {
	rest  string
	token string // "": the end
	text  string // of a token that is a string
	err   error
}

func (p *patternParser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
	p.rest, p.token = "", ""
}

// next reads a token.
func (p *patternParser) next() {
	p.rest = strings.TrimLeftFunc(p.rest, unicode.IsSpace)
	p.token, p.text = "", ""
	if p.rest == "" {
		return
	}
	n := strings.IndexFunc(p.rest, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune("()[],=<>!'", r) })
	switch {
	case n < 0:
		n = len(p.rest)
	case n > 0: // a path may have names in quotes, and indexes in brackets
		for n < len(p.rest) && (p.rest[n] == '\'' || p.rest[n] == '[' && strings.Contains(p.rest[:n], ":")) {
			end := strings.IndexByte(p.rest[n+1:], map[byte]byte{'\'': '\'', '[': ']'}[p.rest[n]])
			if end < 0 {
				p.fail("an open quote or bracket in a pattern")
				return
			}
			n += end + 2
			for n < len(p.rest) && !unicode.IsSpace(rune(p.rest[n])) && !strings.ContainsRune("()[],=<>!'", rune(p.rest[n])) {
				n++
			}
		}
	case p.rest[0] == '\'':
		p.quoted()
		return
	default:
		if n = 1; strings.ContainsRune("<>!=", rune(p.rest[0])) && strings.HasPrefix(p.rest[1:], "=") || strings.HasPrefix(p.rest, "<>") {
			n = 2
		}
	}
	p.token, p.rest = p.rest[:n], p.rest[n:]
}

// quoted reads a string, in which a backslash escapes a quote or a backslash.
func (p *patternParser) quoted() {
	var text strings.Builder
	for i := 1; i < len(p.rest); i++ {
		switch p.rest[i] {
		case '\\':
			if i++; i < len(p.rest) {
				text.WriteByte(p.rest[i])
			}
		case '\'':
			p.token, p.text, p.rest = "'", text.String(), p.rest[i+1:]
			return
		default:
			text.WriteByte(p.rest[i])
		}
	}
	p.fail("an open string in a pattern")
}

func (p *patternParser) accept(token string) bool {
	if p.token != token {
		return false
	}
	p.next()
	return true
}

func (p *patternParser) want(token string) {
	if !p.accept(token) {
		p.fail("%.30q instead of %q in a pattern", p.token, token)
	}
}

// expression reads comparisons, inside brackets, or observations. AND binds before OR, and
// FOLLOWEDBY, which is for observations, is no wider than AND.
func (p *patternParser) expression(inside bool, depth int) meaning {
	if depth > maxPatternDepth {
		p.fail("a pattern nested deeper than %d", maxPatternDepth)
		return meaning{}
	}
	m := p.both(inside, depth)
	for p.accept("OR") {
		other := p.both(inside, depth)
		m = meaning{addresses: append(m.addresses, other.addresses...), narrow: m.narrow || other.narrow}
	}
	return m
}

func (p *patternParser) both(inside bool, depth int) meaning {
	m := p.single(inside, depth)
	for p.accept("AND") || !inside && p.accept("FOLLOWEDBY") {
		other := p.single(inside, depth)
		switch {
		case inside && other.types:
		case inside && m.types:
			m = other
		default:
			m = meaning{narrow: m.narrow || other.narrow || len(m.addresses)+len(other.addresses) > 0}
		}
	}
	return m
}

func (p *patternParser) single(inside bool, depth int) (m meaning) {
	switch {
	case p.accept("("):
		m = p.expression(inside, depth+1)
		p.want(")")
	case inside:
		return p.comparison()
	default:
		p.want("[")
		m = p.expression(true, depth+1)
		p.want("]")
	}
	for !inside && (p.token == "WITHIN" || p.token == "REPEATS" || p.token == "START" || p.token == "STOP") {
		for p.token != "" && p.token != "AND" && p.token != "OR" && p.token != "FOLLOWEDBY" && p.token != ")" {
			p.next()
		}
		m = meaning{narrow: m.narrow || len(m.addresses) > 0}
	}
	return m
}

// comparison reads the comparison of a value with constants.
func (p *patternParser) comparison() meaning {
	not := p.accept("NOT")
	exists := p.accept("EXISTS")
	path := p.token
	if !strings.Contains(path, ":") {
		p.fail("%.30q instead of an object's property in a pattern", path)
		return meaning{}
	}
	p.next()
	addresses := path == "ipv4-addr:value" || path == "ipv6-addr:value" || path == "network-traffic:dst_ref.value" || path == "network-traffic:src_ref.value"
	if exists {
		return meaning{narrow: addresses}
	}
	not = p.accept("NOT") || not
	operator := p.token
	p.next()
	var values []string
	if operator == "IN" {
		p.want("(")
		for values = p.constant(nil); p.accept(","); {
			values = p.constant(values)
		}
		p.want(")")
	} else {
		values = p.constant(nil)
	}
	switch equal := !not && (operator == "=" || operator == "==" || operator == "IN"); {
	case addresses && (equal || !not && operator == "ISSUBSET"):
		return meaning{addresses: values}
	case addresses:
		return meaning{narrow: true}
	case equal && len(values) == 1 && (path == "network-traffic:dst_ref.type" || path == "network-traffic:src_ref.type"):
		return meaning{types: values[0] == "ipv4-addr" || values[0] == "ipv6-addr"}
	}
	return meaning{}
}

// constant reads a constant, as a text without a blank where it is an address.
func (p *patternParser) constant(to []string) []string {
	if p.token == "" || strings.ContainsAny(p.token, "()[],=<>!") {
		p.fail("%.30q instead of a constant in a pattern", p.token)
		return nil
	}
	text := p.text
	if p.token != "'" {
		text = p.token
	}
	p.next()
	return append(to, strings.TrimSpace(text))
}

// isAddress reports whether a text is an address or a prefix, masked or not.
func isAddress(text string) bool {
	return prefix(text).IsValid() && !strings.Contains(text, "%") // a zone
}
