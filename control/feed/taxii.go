package feed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"weir/control/compressed"
	"weir/control/list/listfile"
)

// taxiiType is the media type of TAXII 2.1.
const taxiiType = "application/taxii+json;version=2.1"

// Bounds of a collection, beside those of a source.
const (
	maxPages    = 10_000
	maxPage     = 32 << 20 // bytes
	maxMadeText = 32 << 20 // bytes of the entries that are made of a source, with their reasons
)

// collection reads the objects of a collection of TAXII 2.1, page by page.
type collection struct {
	source *source
	ctx    context.Context
	cancel context.CancelFunc
	url    *url.URL
	page   bytes.Reader
	pages  int
	ended  bool
	err    error
}

// collection returns the collection that a source's URL names, or that of its objects. All pages
// together may take as long as one answer of another source.
func (s *source) collection(ctx context.Context) (*body, error) {
	at, err := url.Parse(string(s.URL))
	if err != nil {
		return nil, fail(Unreachable, "malformed URL")
	}
	if !strings.HasSuffix(strings.TrimSuffix(at.Path, "/"), "/objects") {
		at = at.JoinPath("objects")
	}
	if !strings.HasSuffix(at.Path, "/") {
		at = at.JoinPath("/")
	}
	q := at.Query() // the operator's own filters, such as added_after
	if !q.Has("match[type]") {
		q.Set("match[type]", "indicator")
	}
	at.RawQuery = q.Encode()
	c := &collection{source: s, url: at}
	c.ctx, c.cancel = context.WithTimeoutCause(ctx, time.Duration(s.Timeout), errTimeout)
	if err := c.turn(); err != nil {
		c.cancel()
		return nil, err
	}
	return &body{parts: []part{{s.name, func() (io.ReadCloser, error) { return c, nil }}}}, nil
}

// Read implements [io.Reader].
func (c *collection) Read(p []byte) (int, error) {
	for c.page.Len() == 0 && c.err == nil {
		if c.ended {
			return 0, io.EOF
		}
		c.err = c.turn()
	}
	if c.err != nil {
		return 0, c.err
	}
	return c.page.Read(p)
}

// Close implements [io.Closer].
func (c *collection) Close() error {
	c.cancel()
	return nil
}

// turn requests the next page.
func (c *collection) turn() error {
	if c.pages++; c.pages > maxPages {
		return fail(TooLarge, "more than %d pages", maxPages)
	}
	a, err := c.source.get(c.ctx, c.url.String(), validator{})
	if err != nil {
		return err
	}
	defer a.Close()
	if kind := a.Header.Get("Content-Type"); !strings.HasPrefix(kind, "application/taxii+json") {
		return fail(Garbage, "the server answers with %.60q: is the URL that of a collection of TAXII 2.1?", kind)
	}
	text, err := io.ReadAll(io.LimitReader(a, maxPage+1))
	switch {
	case err != nil:
		return err
	case len(text) > maxPage:
		return fail(TooLarge, "a page of more than %d bytes", maxPage)
	}
	var envelope struct {
		More bool   `json:"more"`
		Next string `json:"next"`
	}
	if err := json.Unmarshal(text, &envelope); err != nil {
		return fail(Garbage, "page %d: %w", c.pages, err)
	}
	c.page.Reset(append(text, '\n'))
	if c.ended = !envelope.More; c.ended {
		return nil
	}
	q, name, value := c.url.Query(), "next", envelope.Next
	if value == "" { // a server without cursors
		name, value = "added_after", a.Header.Get("X-TAXII-Date-Added-Last")
	}
	if value == "" || q.Get(name) == value {
		return fail(Garbage, "page %d says that there are more, and not which", c.pages)
	}
	q.Set(name, value)
	c.url.RawQuery = q.Encode()
	return nil
}

// indicators returns a body in the list format, an address a line with the name of its
// indicator as a comment, for a body of STIX, and what is to be reported of each part. So the
// same text has other contents when an indicator is not valid any more, given the active contents,
// nil for none. It fails with the doubt of the clock, unless that is nil or the indicators confirm
// the clock.
func (f *Feed) indicators(w *listfile.Work, s *source, b *body, old *contents, doubt error) (*body, []listfile.Report, error) {
	var text bytes.Buffer
	var reports []listfile.Report
	left, textLeft, m := int64(s.MaxBytes), int64(s.MaxBytes), &moment{now: time.Now(), format: &f.Format}
	if old != nil && s.URL == "" { // of a URL, all losses count
		m.active = old.entries
	}
	for _, p := range b.parts {
		report, err := p.indicators(w, &text, &left, &textLeft, m)
		if err == nil {
			err = report.Judge(f.options(0).MaxBad)
		}
		switch {
		case w.Err() != nil:
			return nil, nil, s.ended(w)
		case err != nil:
			return nil, nil, fmt.Errorf("%s: %w", p.name, err)
		}
		reports = append(reports, report)
	}
	if doubt != nil && !m.confirmed() {
		return nil, nil, doubt
	}
	made := *b
	made.invalid = m.invalid
	made.parts, made.validator = []part{{s.name, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil }}}, validator{}
	return &made, reports, nil
}

// indicators appends the entries of a part to a text. The part may have *left bytes, and
// decompressed *textLeft; it decrements both counts.
func (p part) indicators(w *listfile.Work, to *bytes.Buffer, left, textLeft *int64, m *moment) (listfile.Report, error) {
	report := listfile.Report{File: p.name}
	raw, err := p.open()
	if err != nil {
		return report, err
	}
	defer raw.Close()
	shift := w.Begin()
	defer shift.End()
	// The input lets others have the processor while it waits for a server or a disk.
	plain, err := compressed.NewReader(&input{r: raw, left: left, to: io.Discard, work: w, shift: shift})
	if err != nil {
		return report, err
	}
	defer plain.Close()
	m.leave = func(reason string) { leave(&report, reason) }
	in := &lines{r: limit{r: plain, left: textLeft, work: w, shift: shift}, most: maxURLLines}
	bad := func(at place, text string, err error) { addBad(&report, at.line, text, err) }
	err = indicators(in, m, func(at place, address, name string) {
		if !isAddress(address) {
			bad(at, address, errors.New("not an address"))
			return
		}
		report.Good++
		fmt.Fprintf(to, "%s # %s\n", address, said(name))
		if to.Len() > maxMadeText && in.err == nil {
			in.err = fail(TooLarge, "more than %d bytes of entries", maxMadeText)
		}
	}, bad)
	report.Lines = in.total()
	if in.err != nil {
		err = in.err
	}
	return report, err
}
