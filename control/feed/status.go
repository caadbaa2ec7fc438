package feed

import (
	"log/slog"

	"weir/control/api"
)

// maxBadLines bounds the bad lines of a source that are shown one by one.
const maxBadLines = 5

// API returns what came of an attempt for a list, as clients see it. inactive is why contents that were
// read are not active, nil where they are.
func (o Outcome) API(list string, inactive error) api.FetchOutcome {
	out := api.FetchOutcome{
		List: list, Source: o.Source, Outcome: o.Result.String(), Entries: o.Entries, Changed: o.Changed, Unsaved: o.Unsaved != nil,
		Rejected: o.Rejected,
	}
	bad, n := badLines(o.Reports)
	out.BadLines, out.FirstBad = n, bad[:min(len(bad), maxBadLines)]
	switch {
	case o.Err != nil:
		out.Failure, out.Error = o.Failure.String(), o.Err.Error()
	case inactive != nil:
		out.Outcome, out.Failure, out.Error, out.Changed = api.Failed, api.Inactive, inactive.Error(), false
	}
	return out
}

// LogBadLines logs how many lines of a list's source were left out, and the first ones.
func (s SourceStatus) LogBadLines(log *slog.Logger, list string) {
	if left := s.LeftOut(); len(left) > 0 {
		log.Info("left out by the format", "list", list, "source", s.Source, "what", left)
	}
	if wide := s.WideLines(); len(wide) > 0 {
		log.Warn("lines cover much, probably a mistake", "list", list, "source", s.Source, "lines", wide)
	}
	lines, n := s.BadLines()
	if n == 0 {
		return
	}
	log.Warn("bad lines were left out", "list", list, "source", s.Source, "lines", n, "first", lines[:min(len(lines), maxBadLines)])
}

// API returns the state of a source, whose entries may be refused, as clients see it.
func (s SourceStatus) API(refusal error) api.FeedSource {
	f := api.FeedSource{
		Source: s.Source, Outcome: s.Last.Result.String(), Entries: s.Entries, Failures: s.Failures, Unsaved: s.Unsaved, Version: s.Version,
	}
	lines, bad := s.BadLines()
	f.BadLines, f.FirstBad = bad, append([]string{}, lines[:min(len(lines), maxBadLines)]...)
	f.LeftOut, f.Wide = s.LeftOut(), s.WideLines()
	if refusal != nil {
		f.Outcome, f.Failure, f.Error = api.Failed, api.Inactive, refusal.Error()
	}
	if s.Last.Failure != NoFailure {
		f.Failure = s.Last.Failure.String()
	}
	if s.Last.Err != nil {
		f.Error = s.Last.Err.Error()
	}
	if !s.Read.IsZero() {
		f.Read = &s.Read
	}
	if !s.RolledBack.IsZero() {
		f.RolledBack = &s.RolledBack
	}
	if !s.Next.IsZero() {
		f.Next = &s.Next
	}
	return f
}
