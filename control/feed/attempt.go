package feed

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"weir/control/list"
	"weir/control/list/listfile"
)

// contents are the contents of a source when it was read.
type contents struct {
	entries *list.Set
	reports []listfile.Report // of each file
	sum     [sha256.Size]byte
	record
	saved     bool                 // the saved file has the same contents
	decisions decisions            // CrowdSec's
	resolved  map[string]*resolved // of names; it does not change
}

// restPerWork is how long a source from a URL rests after an attempt that has failed, in
// proportion to the processor time that this took: five seconds, which is the most by
// default, are an hour's.
const restPerWork = 720

// lockAttempt waits until no other attempt of the source goes on.
func (s *source) lockAttempt(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case s.attempting <- struct{}{}:
		return nil
	}
}

func (s *source) unlockAttempt() { <-s.attempting }

// occasion is the reason for an attempt.
type occasion uint8

const (
	due       occasion = iota
	requested          // whatever is still valid
	accepted           // requested, and contents that are not plausible are taken, too
)

// attempt tries to read a source. It fails only if ctx ends.
func (f *Feed) attempt(ctx context.Context, s *source, why occasion) (Outcome, error) {
	o := Outcome{Source: s.name}
	if err := s.lockAttempt(ctx); err != nil {
		return o, err
	}
	defer s.unlockAttempt()
	accept := why == accepted
	s.anew = why != due
	if s.URL == "" && !isStream(string(s.File)) && f.Format.Kind != Names { // which waits for resolvers
		defer reading.take(ctx)()
	}
	o.Began = time.Now()
	s.restore()
	if s.decisions, s.expired = s.decisions.active(o.Began); len(s.expired) > 0 {
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
	w := listfile.NewWork(ctx, s.maxCPU())
	defer w.Release()
	if s.tries() > 0 {
		w.Behind()
	}
	b, c, err := f.read(ctx, w, s, &o, old, to, accept)
	if ctx.Err() != nil {
		return o, ctx.Err()
	}
	f.rememberRefused(s, c, old, err)
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	compared := old
	old, undecided := s.current, s.undecided // Revert may have changed them
	last := s.last
	s.mu.Unlock()
	if errors.Is(err, errUnchanged) && (old == nil || compared != nil && old.sum != compared.sum) {
		return last, nil // the source has what Revert has just refused
	}
	switch {
	case errors.Is(err, errUnchanged):
		o.Result, o.Rejected = Unchanged, !old.RolledBack.IsZero()
		c = old.confirmed(old.validator, o.Began)
	case err != nil:
		o.fail(err)
		c = old
	case old != nil && c.sum == old.sum:
		o.Result = Unchanged
		newly := c.Accepted && !old.Accepted
		c = old.readAgain(c, b.validator, o.Began)
		if newly {
			c.Accepted, c.saved, o.Changed = true, false, true
		}
	default:
		o.Result = New
		if old == nil {
			c.First = c.Read
		}
	}
	if err == nil {
		undecided = f.save(s, &o, c, old, undecided, to)
		if b.taken != nil {
			b.taken()
		}
	}
	if o.Changed = o.Changed || o.Result == New; err == nil {
		o.Reports = c.reports
	}
	if s.URL != "" {
		o.rest = min(restPerWork*w.Spent(), maxRetryAfter)
	}
	o.Entries = s.entriesWith(c)
	o.Ended = time.Now()
	f.conclude(s, c, &o, undecided)
	return o, nil
}

// entriesWith returns the number of active entries where contents, nil for none, are the current ones.
func (s *source) entriesWith(c *contents) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c != nil:
		return c.entries.Len()
	case s.former != nil:
		return s.former.entries.Len()
	}
	return 0
}

// conclude makes contents the current ones of a source, and counts its failures.
func (f *Feed) conclude(s *source, c *contents, o *Outcome, undecided *candidate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.Result == Failed && (s.failures > 0 || !o.brokenOff()) {
		o.retryAfter = max(o.retryAfter, o.rest)
	}
	if o.Result != Failed {
		o.Returned, s.returned = s.returned && o.Result == Unchanged, false
	} else if o.Changed { // decisions have expired, and the rest is to be taken in
		s.returned = false
	}
	switch {
	case o.Result != Failed:
		s.damaged = nil
	case c == nil:
		s.damage(o, nil)
	}
	s.current, s.last, s.undecided = c, *o, undecided
	if c != nil && undecided == nil {
		s.former = nil
	}
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
}

// save saves contents, or leaves them to Keep and Revert. It returns what is then
// undecided, given what was.
func (f *Feed) save(s *source, o *Outcome, c, old *contents, undecided *candidate, to *spool) *candidate {
	switch {
	case f.Hold && o.Result == New:
		undecided = undecided.follow(s, c, old)
		o.Unsaved = to.finish(c.record)
		if undecided.unsaved = o.Unsaved; o.Unsaved == nil {
			f.remember(s, c, undecided.former)
		}
	case !c.saved && undecided == nil:
		if o.Unsaved = to.finish(c.record); o.Unsaved == nil {
			f.remember(s, c, old)
			o.Unsaved = f.promote(s, c)
		}
		c.saved = o.Unsaved == nil
	}
	return undecided
}

// follow returns the candidate that contents are after an earlier one, nil for none, and given the
// contents before. It does not change the earlier one, which others may be reading.
func (d *candidate) follow(s *source, c, old *contents) *candidate {
	next := candidate{former: old, decisions: s.decisions}
	if d != nil {
		next = *d
	}
	if !c.RolledBack.IsZero() {
		next.undone = list.Union(next.undone, old.entries)
	}
	if next.undone != nil { // without what the source has, perhaps again
		next.undone = next.undone.Diff(c.entries).Add
	}
	return &next
}

// remember updates the ages and the versions of a source for contents that are about to be
// saved, given those that are saved so far, nil for none.
func (f *Feed) remember(s *source, c, former *contents) {
	if s.saved == "" || former == nil || f.ReadOnly {
		return
	}
	delta := c.entries.Diff(former.entries)
	f.age(s, c, former, delta)
	f.rememberVersion(s, c, former, delta)
}

// readerOf returns the reader of the source's bytes, or of those that were written in the
// format of lists.
func (s *source) readerOf(plain bool) *reader {
	if plain {
		return &reader{}
	}
	return s.format
}

// confirmed returns a copy of c, found to be unchanged at a time, with the
// validator for the next attempt. It does not change c, which others may be
// reading.
func (c *contents) confirmed(v validator, at time.Time) *contents {
	same := *c
	same.validator, same.Read = v, at
	return &same
}

// readAgain is confirmed for the same entries that were read again, as next.
func (c *contents) readAgain(next *contents, v validator, at time.Time) *contents {
	same := c.confirmed(v, at)
	same.Signed, same.Names, same.resolved, same.reports, same.Unended = next.Signed, next.Names, next.resolved, next.reports, next.Unended
	if time.Until(c.Read.Round(0)) > 0 { // by a clock that was wrong: a restart would believe it
		same.saved = false
	}
	if !same.RolledBack.IsZero() { // the source has come back to these contents
		same.RolledBack, same.saved = time.Time{}, false
	}
	return same
}

// holds reports whether contents are saved, or will be if they are kept.
func (s *source) holds(c *contents) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c != nil && (c.saved || c == s.current && s.undecided != nil && s.undecided.unsaved == nil)
}

// open opens a source, given its active contents, nil for none. For names, it also returns
// what is to be reported of them.
func (f *Feed) open(ctx context.Context, w *listfile.Work, s *source, o *Outcome, old *contents, accept bool) (b *body, reports []listfile.Report, err error) {
	var known validator
	// Otherwise it must be read in full, to be saved or for another checksum; or for what
	// changes while it stays the same.
	if s.holds(old) && !accept && !f.Format.Kind.row().made && (s.SHA256 == "" || strings.EqualFold(string(s.SHA256), old.SHA256)) {
		known = old.validator
	}
	var doubt error
	if f.Format.Kind.row().timed && s.written == nil && !accept {
		doubt = s.checkClock(old)
	}
	switch {
	case s.URL == "":
		b, err = s.files(ctx, known, old != nil)
	case f.Format.Kind == CrowdSec:
		b, err = s.stream(ctx, w, f.Clock)
	case f.Format.Kind == TAXII:
		b, err = s.collection(ctx)
	default:
		b, err = s.download(ctx, known, old)
	}
	if err != nil {
		return nil, nil, err
	}
	end := b.end
	b.missing = len(b.parts) == 0
	switch f.Format.Kind {
	case Names:
		b, reports, o.valid, err = f.resolve(ctx, s, b, old, accept)
	case ASNs:
		b, reports, err = f.systems(w, s, b)
	case STIX, TAXII:
		if s.written == nil {
			b, reports, err = f.indicators(w, s, b, old, doubt)
		}
	}
	if b != nil {
		b.end = end
	}
	return b, reports, err
}

// read reads a source, given its active contents, nil for none. It fails for
// all contents that must not become active.
func (f *Feed) read(ctx context.Context, w *listfile.Work, s *source, o *Outcome, old *contents, to io.Writer, accept bool) (*body, *contents, error) {
	b, reports, err := f.open(ctx, w, s, o, old, accept)
	if err != nil {
		return nil, nil, err
	}
	var text bytes.Buffer
	if s.SignatureURL != "" {
		to = io.MultiWriter(to, &text)
	}
	c, err := f.receive(w, s, b, to)
	if b.whole != nil {
		if changed := b.whole(); changed != nil {
			err = changed
		}
	}
	if c == nil {
		return nil, nil, err
	}
	if reports != nil {
		c.reports = reports
	}
	c.reportEnd(s, b)
	// Verify before reporting a parse error, of which a bad checksum may be the
	// reason.
	var bad error
	if c.Signed, bad = s.verify(ctx, c.sum, text.Bytes()); bad == nil && !accept {
		bad = c.fresh(old)
	}
	if bad != nil {
		return nil, nil, bad
	}
	if err == nil && !accept {
		rejects, bad := s.rejects(old, c)
		if bad != nil {
			return nil, nil, bad
		}
		if rejects {
			return nil, nil, errUnchanged
		}
	}
	if err == nil {
		c.Accepted = accept
		c.jump(old, float64(f.MaxShrink))
		if b.stated || accept {
			c.refer(nil, float64(f.MaxShrink))
		} else {
			c.refer(old, float64(f.MaxShrink))
		}
	}
	if err == nil && !b.stated && !accept {
		err = f.plausible(s, b, c, old)
	}
	if err != nil && b.end.cut() {
		err = fail(Truncated, "%v; %w", err, errCut)
	}
	if err == nil && f.Refuse != nil {
		if refusal := f.Refuse(c.entries, accept); refusal != nil {
			err = fail(Refused, "%w", c.withWidest(refusal))
		}
	}
	c.validator, c.decisions, c.Names, c.resolved = b.validator, b.decisions, b.names, b.resolved
	return b, c, err
}

// withWidest returns why contents are refused, with the widest prefixes where they cover too much.
func (c *contents) withWidest(refusal error) error {
	cover, ok := errors.AsType[*list.CoverageError](refusal)
	if !ok {
		return refusal
	}
	for i, w := range widest(c.reports, cover.Family) {
		refusal = fmt.Errorf("%w%s %v", refusal, []string{"; its widest prefixes:", ","}[min(i, 1)], w)
	}
	return refusal
}

// reportEnd reports decisions that cannot be read, and a last line that may be cut off.
func (c *contents) reportEnd(s *source, b *body) {
	if b.unreadable.Bad > 0 {
		b.unreadable.File = s.name
		c.reports = append(c.reports, b.unreadable)
	}
	c.Unended = b.end != nil && b.end.unended
	if b.end.cut() {
		b.validator = validator{} // so that it is read again: a body that ends so twice is not cut off
		c.reports = append(c.reports, listfile.Report{File: s.name, Bad: 1, Errors: []listfile.LineError{{
			File: s.name, Line: b.end.lines + 1, Text: string(b.end.rest[:min(len(b.end.rest), 60)]), Err: errCut,
		}}})
	}
}

// plausible rejects contents that are probably due to a failure of their
// publisher. A file's publisher is the operator, who may remove what he likes, and not
// the clock; a directory without files is probably not mounted.
func (f *Feed) plausible(s *source, b *body, c, old *contents) error {
	n := c.entries.Len()
	unfilled := f.MayBeEmpty && (old == nil || old.entries.Len() == 0)
	switch {
	case s.URL == "" && (!b.missing && old != nil || unfilled):
		return f.checkLoss(c, old, b.invalid)
	case n == 0:
		return fail(Empty, "no entries")
	case old == nil || s.URL == "" || f.Format.Kind == Names: // whose lines resolve has compared
		return nil
	}
	// CrowdSec's decisions expire during an absence, after which all of them are read.
	reference, share := old.reference(c.Read), float64(f.MaxShrink) // no less than old has
	if f.MaxGrowth > 0 && f.Format.Kind != CrowdSec && float64(n) > f.MaxGrowth*reference+growthSlack {
		return fail(Grown, "%d entries, up from %.0f: more than %g times as many, and %d (refresh --accept or a larger max_growth accepts it)",
			n, reference, f.MaxGrowth, growthSlack)
	}
	if before, recent := old.beforeJump(c.Read); recent {
		reference = min(reference, before)
	}
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

// refer sets what later contents are compared with, given the contents before. Contents
// that are back from a jump are compared with what there was before it.
func (c *contents) refer(old *contents, maxShrink float64) {
	n := float64(c.entries.Len())
	c.Reference, c.ReferredAt = n, c.Read
	if old == nil {
		return
	}
	reference := old.reference(c.Read)
	if before, recent := old.beforeJump(c.Read); recent && n < (1-maxShrink)*reference {
		reference = min(reference, before)
	}
	c.Reference = max(n, reference)
}

// jumpMemory is for how long the number of entries before a jump counts: a source
// whose mistake was taken may return to what it was.
const jumpMemory = 7 * 24 * time.Hour

// leastJump is the number of entries that a jump adds at least: of a few entries, any
// change is a large one.
const leastJump = 1000

// beforeJump returns the number of entries before the source grew by so many that to
// lose them again would be refused, and whether that is recent.
func (c *contents) beforeJump(now time.Time) (entries float64, recent bool) {
	return c.Before, !c.Jumped.IsZero() && now.Sub(c.Jumped) < jumpMemory
}

// jump notes whether the contents are a jump from those before, or follow one.
func (c *contents) jump(old *contents, maxShrink float64) {
	if old == nil {
		return
	}
	n, had := float64(c.entries.Len()), float64(old.entries.Len())
	switch before, recent := old.beforeJump(c.Read); {
	case recent && n > before:
		c.Before, c.Jumped = before, old.Jumped
	case had > 0 && had < (1-maxShrink)*n && n-had >= leastJump:
		c.Before, c.Jumped = had, c.Read
	}
}

// receive reads a body to its end and copies it to a writer. If the body could
// be read, but not parsed, it returns contents with a checksum and an error.
func (f *Feed) receive(w *listfile.Work, s *source, b *body, to io.Writer) (*contents, error) {
	sum := sha256.New()
	to = io.MultiWriter(sum, to)
	left, textLeft := int64(s.MaxBytes), int64(s.MaxBytes)
	c := &contents{}
	var all list.Entries
	has := memory()
	most := s.maxEntries(f.Format.Kind, has)
	w.Bound(s.maxWide(), int(has/bytesPerEntry))
	c.Source, c.Read, c.validator = s.name, time.Now(), b.validator
	var bad error
	lines := 0
	for _, p := range b.parts {
		src, err := p.open()
		if err != nil {
			return nil, err
		}
		in := &input{r: src, left: &left, to: to, progress: f.Progress, work: w, html: b.html}
		before := left
		o := f.options(max(most-all.Weight(), 1))
		o.Work, o.ToEnd, o.Size = w, b.known, sizeOf(src)
		f.Progress.begin(p.name, o.Size)
		if s.URL != "" && !b.known {
			o.MaxLines = max(maxURLLines-lines, 1)
		}
		e, r, err := s.readerOf(b.plain).read(p.name, in, &textLeft, o)
		lines += r.Lines
		shift := w.Begin()
		_, _ = io.Copy(io.Discard, in) // the rest, after a parse error
		shift.End()
		_ = src.Close() // opened for reading, nothing can be lost
		switch {
		case w.Err() != nil:
			return nil, s.ended(w)
		case in.err != io.EOF:
			return nil, in.err
		}
		if errors.Is(err, listfile.ErrTooManyLines) {
			err = fail(TooLarge, "%s: more than %d lines", p.name, maxURLLines)
		}
		if _, wide := errors.AsType[*listfile.TooWideError](err); wide {
			err = fail(TooLarge, "%w", err)
		}
		if errors.Is(err, listfile.ErrTooManyEntries) || err == nil && all.Weight()+e.Weight() > most {
			err = fail(TooLarge, "%s: more than %d entries (raise max_entries to accept it)", p.name, most)
		}
		if bad = err; bad != nil {
			break
		}
		all.Append(e)
		c.reports = append(c.reports, r)
		c.Files = append(c.Files, recordFile{p.name, before - left})
	}
	if c.entries = sorted(w, all); w.Err() != nil {
		return nil, s.ended(w)
	}
	sum.Sum(c.sum[:0])
	c.SHA256, c.Entries = hex.EncodeToString(c.sum[:]), c.entries.Len()
	return c, bad
}

// sorted returns entries as a set, nil if the work's context ends before.
func sorted(w *listfile.Work, all list.Entries) *list.Set {
	set := make(chan *list.Set, 1)
	go func() { // which cannot be interrupted
		shift := w.Begin()
		s := all.Set()
		shift.End() // before its time is looked at
		set <- s
	}()
	select {
	case s := <-set:
		return s
	case <-w.Done():
		return nil
	}
}

// ended returns why reading has ended early.
func (s *source) ended(w *listfile.Work) error {
	err := w.Err()
	if errors.Is(err, listfile.ErrTooMuchWork) {
		err = fail(TooLarge, "%s: reading takes more than %v of processor time (raise max_cpu to accept it)", s.name, s.MaxCPU)
	}
	return err
}

func (f *Feed) options(maxEntries int) listfile.Options {
	o := listfile.Options{Lenient: f.Lenient, IgnorePorts: f.IgnorePorts, MaxBad: float64(f.MaxBad), MaxEntries: maxEntries}
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
	work     *listfile.Work  // a part of which the caller has begun
	html     bool            // it is served as HTML
	shift    *listfile.Shift // that part; nil: it is not counted here
}

// In says in which part of the work the input is read: a decompressor may read all of it
// and return nothing.
func (in *input) In(s *listfile.Shift) {
	if in != nil {
		in.shift = s
	}
}

func (in *input) Read(p []byte) (n int, err error) {
	if in.err == nil {
		if in.err = in.shift.Check(); in.err == nil {
			in.err = in.work.Err()
		}
	}
	if in.err != nil {
		return 0, in.err
	}
	in.work.Idle(func() { n, err = in.r.Read(p) })
	if *in.left -= int64(n); *in.left < 0 {
		n, err = 0, fail(TooLarge, "more bytes than max_bytes allows")
	}
	_, _ = in.to.Write(p[:n]) // writing to a spool and a checksum never fails
	in.progress.add(n)
	in.err = err
	return n, err
}

// download requests a URL, on the condition that it has changed.
func (s *source) download(ctx context.Context, known validator, old *contents) (*body, error) {
	a, err := s.get(ctx, string(s.URL), known)
	if err != nil {
		return nil, err
	}
	b := &body{}
	var src io.ReadCloser = a
	if s.proofs() == "" && a.endless() && s.format.Kind.row().whole == nil {
		b.end = &ending{ReadCloser: a, text: bufio.NewReader(a), whole: old != nil && old.Unended}
		src = b.end
	}
	b.parts = []part{{s.name, func() (io.ReadCloser, error) { return src, nil }}}
	b.html = isHTML(a.Header.Get("Content-Type"))
	b.ETag, b.LastModified = a.Header.Get("ETag"), a.Header.Get("Last-Modified")
	return b, nil
}
