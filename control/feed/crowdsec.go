package feed

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// decisions maps the addresses and prefixes that CrowdSec bans to their expiry.
//
// Their body is in the list format, one address per line followed by its
// expiry, so that they are read and saved like any other list.
type decisions map[string]time.Time

// decision is the part of a decision in the API that matters here.
type decision struct {
	Scope, Type, Value string
	Duration           string // from now on
	Simulated          bool
}

// enforceable reports whether a packet filter can enforce the decision.
func (d decision) enforceable() bool {
	return strings.EqualFold(d.Type, "ban") && !d.Simulated &&
		(strings.EqualFold(d.Scope, "ip") || strings.EqualFold(d.Scope, "range"))
}

// stream requests CrowdSec's decisions: all of them at the start and after a
// failure, otherwise the changes. The API computes changes since its last
// answer, whether or not that arrived.
func (s *source) stream(ctx context.Context) (*body, error) {
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
	next, err := before.update(&input{r: a, left: &left, to: io.Discard}, time.Now())
	if err != nil {
		return nil, err
	}
	b := next.body(s.String())
	b.stated = !all || len(s.decisions) == 0
	b.taken = func() { s.decisions, s.synced = next, true }
	return b, nil
}

// update reads an answer of the API and returns the resulting decisions.
func (d decisions) update(src *input, now time.Time) (decisions, error) {
	var answer struct{ New, Deleted json.RawMessage }
	var added, deleted []decision
	err := json.NewDecoder(src).Decode(&answer)
	switch {
	case src.err != nil && src.err != io.EOF:
		return nil, src.err
	case err == io.EOF:
		err = io.ErrUnexpectedEOF
	case err == nil && (answer.New == nil || answer.Deleted == nil): // not even null
		return nil, fail(Garbage, `no "new" and "deleted" in the answer: is the URL that of CrowdSec's local API?`)
	case err == nil:
		err = json.Unmarshal(answer.New, &added)
	}
	if err == nil {
		err = json.Unmarshal(answer.Deleted, &deleted)
	}
	if err != nil {
		return nil, fmt.Errorf("decisions: %w", err)
	}

	next := decisions{}
	maps.Copy(next, d)
	// Deletions first: a decision may have been renewed.
	for _, e := range deleted {
		if e.enforceable() {
			delete(next, e.Value)
		}
	}
	for _, e := range added {
		if !e.enforceable() {
			continue
		}
		left, err := time.ParseDuration(e.Duration)
		if err != nil {
			return nil, fail(Garbage, "decision on %q for %q: want a duration", e.Value, e.Duration)
		}
		if strings.Trim(e.Value, "0123456789abcdefABCDEF.:/") != "" || e.Value == "" {
			return nil, fail(Garbage, "decision on %q: want an address or a prefix", e.Value)
		}
		// Rounded up to seconds, the resolution of saved times.
		next[e.Value] = now.Add(left + time.Second - 1).Truncate(time.Second)
	}
	return next, nil
}

// expire removes expired decisions and reports whether there were any.
func (d decisions) expire(now time.Time) bool {
	before := len(d)
	maps.DeleteFunc(d, func(_ string, until time.Time) bool { return !until.After(now) })
	return len(d) < before
}

// body returns the decisions as a source's contents.
func (d decisions) body(name string) *body {
	var text bytes.Buffer
	for _, value := range slices.Sorted(maps.Keys(d)) {
		fmt.Fprintf(&text, "%s\t%s\n", value, d[value].UTC().Format(time.RFC3339))
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil }
	return &body{parts: []part{{name, open}}, stated: true}
}

// parseDecisions is the inverse of body.
func parseDecisions(text io.Reader) (decisions, error) {
	d := decisions{}
	s := bufio.NewScanner(text)
	for s.Scan() {
		value, until, _ := strings.Cut(s.Text(), "\t")
		t, err := time.Parse(time.RFC3339, until)
		if err != nil {
			return nil, err
		}
		d[value] = t
	}
	return d, s.Err()
}

// remake rebuilds the contents from CrowdSec's decisions.
func (f *Feed) remake(s *source) {
	b := s.decisions.body(s.name)
	c, err := f.receive(s, b, io.Discard)
	if err != nil {
		return // cannot fail: they were parsed before
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Read, c.saved = s.current.Read, s.current.saved
	s.current = c
}
