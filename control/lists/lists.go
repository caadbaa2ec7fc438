// Package lists has what the lists of a daemon have in common with those of the hub of a fleet:
// names, manual entries and the commands that change them, feeds, trials, and when what has failed is
// tried again. Both own their lists in one goroutine. They differ in what becomes of new contents:
// those of a daemon are for its engine, those of a hub for its store.
package lists

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/journal"
	"weir/control/list"
	"weir/filter/key"
)

// ByName has lists by name.
type ByName[L any] map[string]L

// Find returns the list of a name. The error for one that does not exist names those that do.
func (m ByName[L]) Find(name string) (L, error) {
	l, ok := m[name]
	if !ok {
		return l, api.NoList(name, slices.Sorted(maps.Keys(m)))
	}
	return l, nil
}

// Manual returns the manual entries of a list, which allows or blocks. One that was added to block does not allow when its
// list has become one of the other kind, and one whose time is over does not count.
func Manual(j *journal.Journal, name string, allow bool) iter.Seq[journal.Entry] {
	return func(yield func(journal.Entry) bool) {
		for e := range j.EntriesOf(name) {
			if e.Allow == allow && !yield(e) {
				return
			}
		}
	}
}

// ManualKeys returns the keys of the manual entries of a list.
func ManualKeys(j *journal.Journal, name string, allow bool) (all []key.Key) {
	for e := range Manual(j, name, allow) {
		all = append(all, e.Key)
	}
	return all
}

// private are the networks that have no place in the Internet: those of RFC 1918, the
// host's own, loopback, link-local and shared ones.
var private = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("::/127"), netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("fe80::/10"),
}

// Private returns the entries of private networks.
func Private(contents *list.Set) *list.Set { return contents.Inside(private...) }

// Public returns contents without private networks, where these are excluded.
func Public(contents *list.Set, excluded bool) *list.Set {
	if excluded {
		contents, _ = contents.Apply(list.Delta{Remove: Private(contents)})
	}
	return contents
}

// Retry says when what has failed is tried again: after a second, and then after twice as long each
// time, since an attempt may take long itself.
type Retry struct {
	Err   error // of the last attempt; nil: it has not failed
	pause time.Duration
	at    time.Time
}

// Fail notes why an attempt has failed. most is the longest time until the next one.
func (r *Retry) Fail(err error, now time.Time, most time.Duration) {
	r.Err, r.pause = err, min(max(time.Second, 2*r.pause), most)
	r.at = now.Add(r.pause)
}

// Due reports whether it is time for another attempt.
func (r *Retry) Due(now time.Time) bool { return !now.Before(r.at) }
