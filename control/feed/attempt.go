package feed

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"time"

	"weir/control/list"
)

// contents are what a source held when it was read.
type contents struct {
	entries *list.Set
	reports []list.Report // of each file
	sum     [sha256.Size]byte
	record
	saved bool // it is what the saved file holds
}

// attempt tries a source. It fails only if ctx ends.
func (f *Feed) attempt(ctx context.Context, s *source) (Outcome, error) {
	s.attempting.Lock()
	defer s.attempting.Unlock()
	o := Outcome{Source: s.name, Began: time.Now()}
	if s.decisions.expire(o.Began) {
		f.remake(s)
		o.Changed = true
	}
	s.mu.Lock()
	old := s.held
	s.asked = nil
	s.mu.Unlock()

	to := &spool{path: s.saved}
	defer to.discard()
	b, c, err := f.read(ctx, s, old, to)
	if ctx.Err() != nil {
		return o, ctx.Err()
	}
	switch {
	case errors.Is(err, errUnchanged):
		o.Result = Unchanged
		c = old.confirmed(old.validator, o.Began)
	case err != nil:
		o.fail(err)
		c = old
	default:
		o.Result = New
		if old != nil && c.sum == old.sum {
			o.Result = Unchanged
			c = old.confirmed(b.validator, o.Began)
		}
		if !c.saved {
			o.Unsaved = to.commit(c.record)
			c.saved = o.Unsaved == nil
		}
		if b.taken != nil {
			b.taken()
		}
	}
	o.Changed = o.Changed || o.Result == New
	if c != nil {
		o.Entries = c.entries.Len()
	}
	o.Ended = time.Now()

	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.last = c, o
	if len(s.asked) > 0 { // else a connection was still there
		s.servers = s.asked
	}
	if o.Changed {
		f.version.Add(1) // behind what it counts
	}
	if s.failures++; o.Result != Failed {
		s.failures = 0
	}
	return o, nil
}

// confirmed is c, found to be the same at a time, with the validator for next
// time. It is a copy, as others may be reading c.
func (c *contents) confirmed(v validator, at time.Time) *contents {
	same := *c
	same.validator, same.Read = v, at
	return &same
}

// read reads a source, of which the contents old are in force, nil for none. It
// fails for all that must not come into force.
func (f *Feed) read(ctx context.Context, s *source, old *contents, to io.Writer) (*body, *contents, error) {
	var known validator
	// Otherwise all of it is needed again, to be saved or for another checksum.
	if old != nil && old.saved && (s.SHA256 == "" || strings.EqualFold(string(s.SHA256), old.SHA256)) {
		known = old.validator
	}
	var b *body
	var err error
	switch {
	case s.URL == "":
		b, err = s.files(known, old != nil)
	case f.Format.Kind == CrowdSec:
		b, err = s.stream(ctx)
	default:
		b, err = s.download(ctx, known)
	}
	if err != nil {
		return nil, nil, err
	}
	var text bytes.Buffer
	if s.SignatureURL != "" {
		to = io.MultiWriter(to, &text)
	}
	c, err := f.receive(s, b, to)
	if b.whole != nil {
		if changed := b.whole(); changed != nil {
			err = changed
		}
	}
	if c == nil {
		return nil, nil, err
	}
	// Before the complaint that it makes no sense: that may be the reason.
	if err := s.verify(ctx, c.sum, text.Bytes()); err != nil {
		return nil, nil, err
	}
	if err == nil && !b.stated {
		err = f.plausible(s, c, old)
	}
	if err == nil && f.Refuse != nil {
		if refusal := f.Refuse(c.entries); refusal != nil {
			err = fail(Refused, "%w", refusal)
		}
	}
	c.validator = b.validator
	return b, c, err
}

// plausible refuses contents that are likely to be a failure of whoever makes
// them.
func (f *Feed) plausible(s *source, c, old *contents) error {
	n := c.entries.Len()
	unfilled := f.MayBeEmpty && s.Directory != "" && (old == nil || old.entries.Len() == 0)
	if n == 0 && !unfilled {
		return fail(Empty, "no entries")
	}
	if old == nil {
		return nil
	}
	before, share := old.entries.Len(), float64(f.MaxShrink)
	if lost := before - n; float64(lost) > share*float64(before) {
		return fail(Shrunk, "%d entries, after %d: more than %g%% went (raise max_shrink to accept it)", n, before, 100*share)
	}
	return nil
}

// receive reads a body to its end and copies it to another place. Where the
// body could be read, but not understood, there are contents with its checksum
// beside the error.
func (f *Feed) receive(s *source, b *body, to io.Writer) (*contents, error) {
	sum := sha256.New()
	to = io.MultiWriter(sum, to)
	left, textLeft := int64(s.MaxBytes), int64(s.MaxBytes)
	c := &contents{}
	var all list.Entries
	c.Source, c.Read, c.validator = s.name, time.Now(), b.validator
	var bad error
	for _, p := range b.parts {
		src, err := p.open()
		if err != nil {
			return nil, err
		}
		in := &input{r: src, left: &left, to: to}
		before := left
		e, r, err := f.format.read(p.name, in, &textLeft, f.options())
		_, _ = io.Copy(io.Discard, in) // what a reader that failed has left
		_ = src.Close()                // it was read, nothing can be lost
		if in.err != io.EOF {
			return nil, in.err
		}
		if bad = err; bad != nil {
			break
		}
		all.Append(e)
		c.reports = append(c.reports, r)
		c.Files = append(c.Files, recordFile{p.name, before - left})
	}
	c.entries = all.Set()
	sum.Sum(c.sum[:0])
	c.SHA256, c.Entries = hex.EncodeToString(c.sum[:]), c.entries.Len()
	return c, bad
}

func (f *Feed) options() list.Options {
	o := list.Options{Lenient: f.Lenient, MaxBad: float64(f.MaxBad)}
	if o.MaxBad == 0 {
		o.MaxBad = -1 // for package list, 0 is the default
	}
	return o
}

// input reads what a source serves, copies it, and stops where it is too much.
type input struct {
	r    io.Reader
	left *int64 // bytes that may come yet
	to   io.Writer
	err  error // the source's own, whatever a reader makes of it; io.EOF at the end
}

func (in *input) Read(p []byte) (int, error) {
	if in.err != nil {
		return 0, in.err
	}
	n, err := in.r.Read(p)
	if *in.left -= int64(n); *in.left < 0 {
		n, err = 0, fail(TooLarge, "more bytes than the source may have (max_bytes)")
	}
	_, _ = in.to.Write(p[:n]) // a spool and a checksum never fail
	in.err = err
	return n, err
}

// download asks for a URL, unless it holds what is known.
func (s *source) download(ctx context.Context, known validator) (*body, error) {
	a, err := s.get(ctx, string(s.URL), known)
	if err != nil {
		return nil, err
	}
	b := &body{parts: []part{{s.name, func() (io.ReadCloser, error) { return a, nil }}}}
	b.ETag, b.LastModified = a.Header.Get("ETag"), a.Header.Get("Last-Modified")
	return b, nil
}
