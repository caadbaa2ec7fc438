package feed

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"strings"
	"time"

	"weir/control/list"
)

// contents is what a source contained when it was read.
type contents struct {
	entries *list.Set
	reports []list.Report // of each file
	sum     [sha256.Size]byte
	record
	saved     bool      // the saved file has the same contents
	decisions decisions // CrowdSec's
}

// attempt tries to read a source, and with accept takes contents that are not
// plausible, too. It fails only if ctx ends.
func (f *Feed) attempt(ctx context.Context, s *source, accept bool) (Outcome, error) {
	s.attempting.Lock()
	defer s.attempting.Unlock()
	o := Outcome{Source: s.name, Began: time.Now()}
	s.restore()
	if left, expired := s.decisions.active(o.Began); expired {
		s.decisions = left
		f.remake(s)
		o.Changed = true
	}
	s.mu.Lock()
	old := s.current
	s.asked = nil
	s.mu.Unlock()

	to := &spool{path: s.saved}
	if f.ReadOnly {
		to.path = ""
	}
	defer to.discard()
	b, c, err := f.read(ctx, s, old, to, accept)
	if ctx.Err() != nil {
		return o, ctx.Err()
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	old, undecided := s.current, s.undecided // Revert may have changed them
	s.mu.Unlock()
	switch {
	case errors.Is(err, errUnchanged):
		o.Result = Unchanged
		c = old.confirmed(old.validator, o.Began)
	case err != nil:
		o.fail(err)
		c = old
	case old != nil && c.sum == old.sum:
		o.Result = Unchanged
		accepted, signed := c.Accepted && !old.Accepted, c.Signed
		c = old.confirmed(b.validator, o.Began)
		c.Signed = signed
		if accepted {
			c.Accepted, c.saved, o.Changed = true, false, true
		}
	default:
		o.Result = New
	}
	if err == nil {
		undecided = f.save(s, &o, c, old, undecided, to)
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
	s.current, s.last, s.undecided = c, o, undecided
	if len(s.asked) > 0 { // otherwise a connection was reused
		s.servers = s.asked
	}
	if o.Changed {
		version := f.version.Add(1) // after the change that it counts
		if o.Result == New && undecided != nil {
			undecided.version = version
		}
	}
	switch {
	case o.Result == Failed:
		s.failures++
	case undecided == nil: // else Keep or Revert counts
		s.failures = 0
	}
	return o, nil
}

// save saves contents, or leaves them to Keep and Revert. It returns what is then
// undecided, given what was.
func (f *Feed) save(s *source, o *Outcome, c, old *contents, undecided *candidate, to *spool) *candidate {
	switch {
	case f.Hold && o.Result == New:
		if undecided == nil {
			undecided = &candidate{former: old, decisions: s.decisions}
		}
		o.Unsaved = to.finish(c.record)
		undecided.unsaved = o.Unsaved
	case !c.saved && undecided == nil:
		if o.Unsaved = to.finish(c.record); o.Unsaved == nil {
			o.Unsaved = f.promote(s)
		}
		c.saved = o.Unsaved == nil
	}
	return undecided
}

// confirmed returns a copy of c, found to be unchanged at a time, with the
// validator for the next attempt. It does not change c, which others may be
// reading.
func (c *contents) confirmed(v validator, at time.Time) *contents {
	same := *c
	same.validator, same.Read = v, at
	return &same
}

// read reads a source, given its active contents, nil for none. It fails for
// all contents that must not become active.
func (f *Feed) read(ctx context.Context, s *source, old *contents, to io.Writer, accept bool) (*body, *contents, error) {
	var known validator
	// Otherwise it must be read in full, to be saved or for another checksum.
	if old != nil && old.saved && !accept && (s.SHA256 == "" || strings.EqualFold(string(s.SHA256), old.SHA256)) {
		known = old.validator
	}
	var b *body
	var err error
	switch {
	case s.URL == "":
		b, err = s.files(ctx, known, old != nil)
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
	// Verify before reporting a parse error, of which a bad checksum may be the
	// reason.
	var bad error
	if c.Signed, bad = s.verify(ctx, c.sum, text.Bytes()); bad == nil && !accept {
		bad = c.fresh(old)
	}
	if bad != nil {
		return nil, nil, bad
	}
	if err == nil {
		c.Accepted = accept
		if b.stated || accept {
			c.refer(nil)
		} else {
			c.refer(old)
		}
	}
	if err == nil && !b.stated && !accept {
		err = f.plausible(s, c, old)
	}
	if err == nil && f.Refuse != nil {
		if refusal := f.Refuse(c.entries, accept); refusal != nil {
			err = fail(Refused, "%w", refusal)
		}
	}
	c.validator, c.decisions = b.validator, b.decisions
	return b, c, err
}

// plausible rejects contents that are probably due to a failure of their
// publisher. A file's publisher is the operator, who may remove what he likes; a
// directory without files is probably not mounted.
func (f *Feed) plausible(s *source, c, old *contents) error {
	n := c.entries.Len()
	unfilled := f.MayBeEmpty && (old == nil || old.entries.Len() == 0)
	switch {
	case s.URL == "" && (len(c.Files) > 0 && old != nil || unfilled):
		return nil
	case n == 0:
		return fail(Empty, "no entries")
	case old == nil || s.URL == "":
		return nil
	}
	reference, share := old.reference(c.Read), float64(f.MaxShrink)
	if lost := reference - float64(n); lost > share*reference {
		return fail(Shrunk, "%d entries, down from %.0f: more than %g%% removed (refresh --accept or a larger max_shrink accepts it)",
			n, reference, 100*share)
	}
	return nil
}

// referenceHalfLife is how slowly the number of entries that a source is compared
// with follows a number that has fallen: a source that loses as many as
// MaxShrink allows may lose as many again after weeks, not at the next attempt.
const referenceHalfLife = 7 * 24 * time.Hour

// reference returns the number of entries that later contents are compared with.
func (c *contents) reference(now time.Time) float64 {
	n := float64(c.entries.Len())
	since := max(now.Sub(c.ReferredAt), 0)
	return n + max(c.Reference-n, 0)*math.Exp2(-since.Hours()/referenceHalfLife.Hours())
}

// refer sets what later contents are compared with, given the contents before.
func (c *contents) refer(old *contents) {
	c.Reference, c.ReferredAt = float64(c.entries.Len()), c.Read
	if old != nil {
		c.Reference = max(c.Reference, old.reference(c.Read))
	}
}

// receive reads a body to its end and copies it to a writer. If the body could
// be read, but not parsed, it returns contents with a checksum and an error.
func (f *Feed) receive(s *source, b *body, to io.Writer) (*contents, error) {
	sum := sha256.New()
	to = io.MultiWriter(sum, to)
	left, textLeft := int64(s.MaxBytes), int64(s.MaxBytes)
	c := &contents{}
	var all list.Entries
	most := s.maxEntries(f.Format.Kind, memory())
	c.Source, c.Read, c.validator = s.name, time.Now(), b.validator
	var bad error
	for _, p := range b.parts {
		src, err := p.open()
		if err != nil {
			return nil, err
		}
		in := &input{r: src, left: &left, to: to, progress: f.Progress}
		f.Progress.begin(p.name, sizeOf(src))
		before := left
		e, r, err := f.format.read(p.name, in, &textLeft, f.options(max(most-all.Weight(), 1)))
		_, _ = io.Copy(io.Discard, in) // the rest, after a parse error
		_ = src.Close()                // opened for reading, nothing can be lost
		if in.err != io.EOF {
			return nil, in.err
		}
		if errors.Is(err, list.ErrTooManyEntries) || err == nil && all.Weight()+e.Weight() > most {
			err = fail(TooLarge, "%s: more than %d entries (raise max_entries to accept it)", p.name, most)
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

func (f *Feed) options(maxEntries int) list.Options {
	o := list.Options{Lenient: f.Lenient, IgnorePorts: f.IgnorePorts, MaxBad: float64(f.MaxBad), MaxEntries: maxEntries}
	if o.MaxBad == 0 {
		o.MaxBad = -1 // for package list, 0 is the default
	}
	return o
}

// sizeOf returns the size of a file, 0 if that is unknown.
func sizeOf(r io.Reader) int64 {
	if f, ok := r.(file); ok {
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			return st.Size()
		}
	}
	return 0
}

// input reads a source's body, copies it, and stops if it is too large.
type input struct {
	r    io.Reader
	left *int64 // bytes that may still follow
	to   io.Writer
	err  error // the source's own error, unwrapped; io.EOF at the end

	progress *Progress
}

func (in *input) Read(p []byte) (int, error) {
	if in.err != nil {
		return 0, in.err
	}
	n, err := in.r.Read(p)
	if *in.left -= int64(n); *in.left < 0 {
		n, err = 0, fail(TooLarge, "more bytes than max_bytes allows")
	}
	_, _ = in.to.Write(p[:n]) // writing to a spool and a checksum never fails
	in.progress.add(n)
	in.err = err
	return n, err
}

// download requests a URL, on the condition that it has changed.
func (s *source) download(ctx context.Context, known validator) (*body, error) {
	a, err := s.get(ctx, string(s.URL), known)
	if err != nil {
		return nil, err
	}
	b := &body{parts: []part{{s.name, func() (io.ReadCloser, error) { return a, nil }}}}
	b.ETag, b.LastModified = a.Header.Get("ETag"), a.Header.Get("Last-Modified")
	return b, nil
}
