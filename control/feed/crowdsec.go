package feed

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
	"unique"

	"weir/control/clock"
	"weir/control/list/listfile"
	"weir/filter/key"
)

var crowdSecFormat = format{
	Description: Description{
		Name: "crowdsec", Example: "crowdsec", About: "the decisions of CrowdSec's local API",
		Grammar: "A source is the URL of [the API](integrations.md). Bans of addresses and ranges are entries. Other decisions, and simulated ones, are left out; a ban that cannot be read is bad.",
	},
	api: true,
}

// decisions maps the addresses and prefixes that CrowdSec bans to what is known of
// them. It does not change once it is the contents of a source.
//
// Their body is in the list format, one address per line followed by the rest, so
// that they are read and saved like any other list.
type decisions map[string]Decision

// Decision is a ban as CrowdSec describes it.
type Decision struct {
	Expires  time.Time
	Added    time.Time // when weir first read it
	Origin   string    // as in crowdsec, CAPI, cscli, or lists
	Scenario string    // the reason
}

// DefaultCrowdSecInterval is the default of Spec.Interval for CrowdSec, which sends
// changes only: that of its own bouncers.
const DefaultCrowdSecInterval = 10 * time.Second

// maxSaid bounds an origin and a scenario, in bytes.
const maxSaid = 128

// said returns a text of the API in one printable line. Equal ones share memory.
func said(text string) string {
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text[:min(len(text), maxSaid)])
	return unique.Make(strings.Join(strings.Fields(text), " ")).Value()
}

// decision is the part of a decision in the API that matters here.
type decision struct {
	Scope, Type, Value string
	Duration           string // from now on
	Simulated          bool
	Origin, Scenario   string
}

// enforceable reports whether a packet filter can enforce the decision.
func (d decision) enforceable() bool {
	return strings.EqualFold(d.Type, "ban") && !d.Simulated &&
		(strings.EqualFold(d.Scope, "ip") || strings.EqualFold(d.Scope, "range"))
}

// stream requests CrowdSec's decisions: all of them at the start and after a
// failure, otherwise the changes. The API computes changes since its last
// answer, whether or not that arrived.
func (s *source) stream(ctx context.Context, w *listfile.Work, by *clock.Clock) (*body, error) {
	all := !s.synced
	s.synced = false
	u, err := url.Parse(string(s.URL))
	if err != nil {
		return nil, fail(Unreachable, "malformed URL")
	}
	u = u.JoinPath("v1", "decisions", "stream")
	q := u.Query() // the operator's own filters, such as origins
	q.Set("startup", strconv.FormatBool(all))
	u.RawQuery = q.Encode()
	a, err := s.get(ctx, u.String(), validator{})
	if err != nil {
		return nil, err
	}
	defer a.Close()
	before := s.decisions
	if all {
		before = nil
	}
	left := int64(s.MaxBytes)
	shift := w.Begin()
	next, deleted, bad, err := before.update(&input{r: a, left: &left, to: io.Discard, work: w, shift: shift}, s.maxEntries(CrowdSec, memory()), time.Now())
	shift.End()
	switch {
	case w.Err() != nil:
		return nil, s.ended(w)
	case err != nil:
		return nil, err
	}
	if all && len(bad) > 0 && len(next) == 0 { // something else than CrowdSec's API
		return nil, fail(Garbage, "%w", slices.Collect(maps.Values(bad))[0])
	}
	for value, d := range next {
		if known, ok := s.decisions[value]; ok {
			d.Added = known.Added
			next[value] = d
		}
	}
	b := next.body(s.String(), by)
	b.stated = !all || len(s.decisions) == 0
	// A decision may have ended here by a wrong clock: the API does not send it again.
	gone := make(map[string]bool, len(deleted))
	for _, d := range deleted {
		gone[d.Value] = true
	}
	missed := slices.ContainsFunc(s.expired, func(value string) bool {
		_, renewed := next[value]
		return !renewed && !gone[value]
	})
	if !all { // the API sends those once
		for value, err := range s.unreadable {
			if _, renewed := next[value]; !renewed && !gone[value] {
				bad[value] = err
			}
		}
	}
	for _, value := range slices.Sorted(maps.Keys(bad)) {
		addBad(&b.unreadable, 0, value, bad[value])
	}
	b.taken = func() { s.decisions, s.unreadable, s.synced = next, bad, all || !missed }
	return b, nil
}

// readDecisions reads an answer of the API: its new decisions and the deleted ones that can
// be enforced, at most the given number of each.
func readDecisions(src *input, most int) (added, deleted []decision, err error) {
	text := &lines{r: src}
	p := newDocument(text, text)
	found := 0
	list := func(to *[]decision) error { // null is an empty one
		found++
		return p.arrayOrNull(func() error {
			var d decision
			if err := p.value(&d); errors.As(err, new(*json.UnmarshalTypeError)) {
				d = decision{Type: "ban", Scope: "ip", Value: d.Value} // without a duration: unreadable
			} else if err != nil {
				return err
			}
			if !d.enforceable() {
				return nil
			}
			if len(*to) == most {
				return fail(TooLarge, "more than %d decisions (raise max_entries to accept it)", most)
			}
			*to = append(*to, decision{Value: strings.TrimSpace(d.Value), Duration: d.Duration, Origin: said(d.Origin), Scenario: said(d.Scenario)})
			return nil
		})
	}
	err = p.object(func(name string) error {
		switch {
		case strings.EqualFold(name, "new"):
			return list(&added)
		case strings.EqualFold(name, "deleted"):
			return list(&deleted)
		}
		return p.skip()
	})
	switch {
	case src.err != nil && src.err != io.EOF:
		return nil, nil, src.err
	case err == nil && found != 2:
		err = fail(Garbage, `no "new" and "deleted" in the answer: is the URL that of CrowdSec's local API?`)
	}
	return added, deleted, err
}

// update reads an answer of the API and returns the resulting decisions, of which it
// may have the given number, those that the answer deletes, and what is wrong with new ones
// that cannot be read.
func (d decisions) update(src *input, most int, now time.Time) (next decisions, deleted []decision, bad map[string]error, err error) {
	added, deleted, err := readDecisions(src, most)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("decisions: %w", err)
	}
	next, bad = decisions{}, make(map[string]error)
	maps.Copy(next, d)
	// Deletions first: a decision may have been renewed.
	for _, e := range deleted {
		delete(next, e.Value)
	}
	for _, e := range added {
		left, wrong := time.ParseDuration(e.Duration)
		switch {
		case wrong != nil:
			bad[e.Value] = fmt.Errorf("decision on %.60q for %.60q: want a duration", e.Value, e.Duration)
			continue
		case !isAddress(e.Value):
			bad[e.Value] = fmt.Errorf("decision on %.60q: want an address or a prefix", e.Value)
			continue
		}
		// Rounded up to seconds, the resolution of saved times. Truncate would take the
		// monotonic time away: a step of the wall clock must not end decisions.
		until := now.Add(left + time.Second - 1)
		next[e.Value] = Decision{
			Expires: until.Add(-time.Duration(until.Nanosecond())), Added: now.Truncate(time.Second),
			Origin: e.Origin, Scenario: e.Scenario,
		}
	}
	return next, deleted, bad, nil
}

// active returns the decisions that have not expired, and the addresses and prefixes of those
// that have.
func (d decisions) active(now time.Time) (left decisions, ended []string) {
	for value, e := range d {
		if !e.Expires.After(now) {
			ended = append(ended, value)
		}
	}
	if len(ended) == 0 {
		return d, nil
	}
	left = maps.Clone(d)
	for _, value := range ended {
		delete(left, value)
	}
	return left, ended
}

// body returns the decisions as a source's contents, with steady times: a restart must neither end nor
// prolong decisions where the wall clock is set meanwhile.
func (d decisions) body(name string, by *clock.Clock) *body {
	var text bytes.Buffer
	steady := by.SteadyNow()
	when := func(t time.Time) string { return steady(t).UTC().Format(time.RFC3339Nano) }
	for _, value := range slices.Sorted(maps.Keys(d)) {
		e := d[value]
		fmt.Fprintf(&text, "%s\t%s\t%s\t%s\t%s\n", value, when(e.Expires), when(e.Added), e.Origin, e.Scenario)
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil }
	return &body{parts: []part{{name, open}}, stated: true, decisions: d}
}

// parseDecisions is the inverse of body.
func parseDecisions(text io.Reader, by *clock.Clock) (decisions, error) {
	d := decisions{}
	s := bufio.NewScanner(text)
	for s.Scan() {
		columns := append(strings.Split(s.Text(), "\t"), "", "", "", "") // earlier versions had two
		until, err := time.Parse(time.RFC3339, columns[1])
		if err != nil {
			return nil, err
		}
		added, _ := time.Parse(time.RFC3339, columns[2]) // zero: unknown
		d[columns[0]] = Decision{Expires: by.Wall(until), Added: by.Wall(added), Origin: said(columns[3]), Scenario: said(columns[4])}
	}
	return d, s.Err()
}

// remake rebuilds the contents from CrowdSec's decisions.
func (f *Feed) remake(s *source) {
	b := s.decisions.body(s.name, f.Clock)
	c, err := f.receive(nil, s, b, io.Discard)
	if err != nil {
		return // cannot fail: they were parsed before
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Read, c.saved, c.decisions = s.current.Read, s.current.saved, s.decisions
	s.current = c
}

// prefix returns what a decision is about, invalid for neither an address nor a
// prefix.
func prefix(value string) netip.Prefix {
	if a, err := netip.ParseAddr(value); err == nil {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen())
	}
	p, _ := netip.ParsePrefix(value)
	return p.Masked()
}

// Decisions returns what CrowdSec says of the active entries that come from there.
func (f *Feed) Decisions() iter.Seq2[netip.Prefix, Decision] {
	return func(yield func(netip.Prefix, Decision) bool) {
		for _, c := range f.loaded() {
			for value, d := range c.decisions {
				if p := prefix(value); p.IsValid() && !yield(p, d) {
					return
				}
			}
		}
	}
}

// decide adds to the origins of keys what CrowdSec says of them.
func (c *contents) decide(here []int, keys []key.Key, origins []Origin) {
	wanted := make(map[netip.Prefix][]int)
	for _, i := range here {
		k := keys[i]
		for _, side := range []netip.Prefix{netip.PrefixFrom(k.Src, int(k.SrcBits)), netip.PrefixFrom(k.Dst, int(k.DstBits))} {
			if side.IsValid() && side.Bits() > 0 {
				wanted[side] = append(wanted[side], i)
			}
		}
	}
	for value, d := range c.decisions {
		for _, i := range wanted[prefix(value)] {
			o := &origins[i]
			o.Added, o.Expires, o.Reason, o.By = d.Added, d.Expires, d.Scenario, d.Origin
		}
	}
}
