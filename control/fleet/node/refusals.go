package node

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	maxRefusals = 8                // that are reported
	refusalAge  = 10 * time.Minute // until one is not reported any more
)

// refusals has the messages that were refused. The lock of its node protects it.
type refusals struct {
	last     []refusal // the latest last
	messages uint64
	logged   time.Time // when one was to be logged last
}

// add adds a message. It reports whether one of the same kind is known, and whether it is not to
// be logged, since another one was within a second.
func (a *refusals) add(err error, now time.Time) (known, quiet bool) {
	a.messages++
	a.forget(now)
	next := refusal{kind: kindOf(err.Error()), text: err.Error(), last: now}
	at := slices.IndexFunc(a.last, func(r refusal) bool { return r.kind == next.kind })
	if known = at >= 0; known {
		next.before = a.last[at].before + 1
		a.last = slices.Delete(a.last, at, at+1)
	}
	a.last = append(a.last, next)
	a.last = a.last[max(0, len(a.last)-maxRefusals):]
	if quiet = now.Sub(a.logged) < time.Second; !quiet {
		a.logged = now
	}
	return known, quiet
}

// forget forgets refusals that are over.
func (a *refusals) forget(now time.Time) {
	a.last = slices.DeleteFunc(a.last, func(r refusal) bool { return now.Sub(r.last) > refusalAge })
}

// refusal is why messages were refused.
type refusal struct {
	kind   string // equal for those that differ in numbers only
	text   string // of the last one
	before int    // of the same kind
	last   time.Time
}

// String describes it for the hub, which shows it: it says when that was.
func (r refusal) String() string {
	if r.before == 0 {
		return fmt.Sprintf("refused at %s: %s", r.last.UTC().Format(time.TimeOnly+"Z"), r.text)
	}
	return fmt.Sprintf("refused %d times, the last at %s: %s", r.before+1, r.last.UTC().Format(time.TimeOnly+"Z"), r.text)
}

// kindOf returns a text without its numbers.
func kindOf(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
}
