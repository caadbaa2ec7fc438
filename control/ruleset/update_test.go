package ruleset

import (
	"errors"
	"testing"
	"time"

	"weir/control/feed"
)

// versioned is a source that has nothing but a version.
type versioned struct{ Source }

func (versioned) Version() uint64 { return 7 }

// What stays in a feed's list is tried again also after an attempt that recorded it, but could not change
// the list.
func TestOverdue(t *testing.T) {
	now := time.Now()
	l := &List{From: versioned{}, FromFeed: new(feed.Feed), seenVersion: 7}
	if l.Fail(errors.New("no room"), now); l.Overdue(now.Add(time.Hour)) {
		t.Error("of a feed, which reads its sources again")
	}
	l.failed.Err = nil
	l.Stay(errors.New("disk full"), now)
	l.Fail(errors.New("no room"), now)
	if l.Overdue(now) || !l.Overdue(now.Add(mostRetryInterval)) {
		t.Errorf("what stays: %v, %v", l.Overdue(now), l.Overdue(now.Add(mostRetryInterval)))
	}
	if l.Refused = errors.New("too wide"); l.Overdue(now.Add(mostRetryInterval)) {
		t.Error("what is refused is activated")
	}
}
