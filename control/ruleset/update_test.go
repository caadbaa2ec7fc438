package ruleset

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/control/config"
	"weir/control/engine"
	"weir/control/feed"
	"weir/control/list"
	"weir/control/lists"
	"weir/control/quantity"
	"weir/filter/key"
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

// Entries whose expiry could not be recorded stay in the next configuration, unless the list has no TTL there, or is
// for something else: then they would stay for ever, or with another meaning.
func TestStay(t *testing.T) {
	source := func(address string) key.Key { return key.Source(netip.MustParsePrefix(address)) }
	read, left := source("192.0.2.1/32"), source("192.0.2.2/32")
	former := config.List{Name: "feed", Action: config.Block, TTL: quantity.Duration(time.Hour)}
	for name, c := range map[string]struct {
		change func(*config.List)
		failed error
		want   []key.Key
	}{
		"the same":            {func(*config.List) {}, errors.New("disk full"), []key.Key{read, left}},
		"another TTL":         {func(l *config.List) { l.TTL *= 2 }, errors.New("disk full"), []key.Key{read, left}},
		"no TTL":              {func(l *config.List) { l.TTL = 0 }, errors.New("disk full"), []key.Key{read}},
		"it allows":           {func(l *config.List) { l.Action = config.Allow }, errors.New("disk full"), []key.Key{read}},
		"another one":         {func(l *config.List) { l.Name = "other" }, errors.New("disk full"), []key.Key{read}},
		"all can be recorded": {func(*config.List) {}, nil, []key.Key{read}},
	} {
		old := &List{List: former, SourceNumber: 1, read: list.SetOf(read), stays: lists.Retry{Err: c.failed}}
		last := &Ruleset{Lists: []*List{old}, ByName: lists.ByName[*List]{"feed": old}, Rules: []engine.List{{Contents: list.SetOf(read, left)}}}
		l := &List{List: former}
		c.change(&l.List)
		got := slices.Collect(l.stay(list.SetOf(read), last).All())
		if !slices.Equal(got, c.want) || l.Stays() != (len(c.want) > 1) {
			t.Errorf("%s: %v, and the list has some to be recorded: %t; want %v", name, got, l.Stays(), c.want)
		}
	}
}
