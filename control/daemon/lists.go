package daemon

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/feed"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/ruleset"
	"weir/filter/key"
	"weir/filter/verdict"
)

// The lists that commands fill where none is named.
const (
	DefaultBlock = "manual"
	DefaultAllow = "manual-allow"
)

// aList is a list of the configuration. In the engine it is two: what its
// sources say, and what was added by command, so that the one is not lost when
// the other goes.
type aList struct {
	config.List
	sources uint16     // the number of the engine's list of what its sources say, 0 if it has none
	command uint16     // and of what was added by command
	feed    *feed.Feed // nil: it has no sources
	taken   uint64     // version of the feed whose contents are active, or that was refused
	behind  bool       // its last change failed, and is tried again
	refused error      // why the feed's contents are not in force, nil if they are
}

func (l *aList) rule() engine.List {
	return engine.List{Name: l.Name, Allow: l.Action == config.Allow, Direction: l.Direction}
}

// state is what a configuration makes: lists, in the order of their numbers.
type state struct {
	config *config.Config
	lists  []*aList
	loaded *ruleset.Loaded
}

// openFeeds opens the feeds of a configuration, or takes over those of the last
// one that are as they were, by list. It asks the sources of which nothing is
// known, for what may be filtering already knows more than nothing.
func (d *Daemon) openFeeds(ctx context.Context, c *config.Config, last *state) (map[string]*feed.Feed, error) {
	feeds := make(map[string]*feed.Feed)
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeout(ctx, firstFetch)
	defer func() { all.Wait(); cancel() }()
	for _, l := range c.Lists {
		if len(l.Sources) == 0 {
			continue
		}
		f := last.feed(c, l)
		if f == nil {
			var err error
			of := l.Feed()
			of.Refuse = func(e *list.Set) error { return refuse(c, l, e) }
			if f, err = feed.Open(of, filepath.Join(string(c.StateDir), "feeds")); err != nil {
				return nil, err
			}
		}
		feeds[l.Name] = f
		if f.Contents().Len() == 0 {
			d.Log.Info("waiting for sources of which nothing is known", "list", l.Name, "at_most", firstFetch.String())
			all.Go(func() { _, _ = f.Fetch(ctx) }) // Status has what came of it
		}
	}
	return feeds, nil
}

// firstFetch is how long sources of which nothing is known are waited for.
const firstFetch = 10 * time.Second

// feed gives the feed of a list that is just as this one, and refuses the same.
func (s *state) feed(c *config.Config, l config.List) *feed.Feed {
	if s == nil || s.config.MaxCoverage != c.MaxCoverage || !reflect.DeepEqual(s.config.Failsafe, c.Failsafe) {
		return nil
	}
	for _, old := range s.lists {
		if old.feed != nil && reflect.DeepEqual(old.List, l) {
			return old.feed
		}
	}
	return nil
}

// newState returns all that is known of a configuration's lists.
func newState(c *config.Config, feeds map[string]*feed.Feed, j *journal.Journal) (*state, error) {
	s := &state{config: c, loaded: &ruleset.Loaded{Rules: rulesOf(c)}}
	lists := slices.Clone(c.Lists)
	for _, l := range []config.List{{Name: DefaultBlock, Action: config.Block}, {Name: DefaultAllow, Action: config.Allow}} {
		if !slices.ContainsFunc(lists, func(o config.List) bool { return o.Name == l.Name }) {
			lists = append(lists, l)
		}
	}
	// The number decides to which of two lists a packet is attributed.
	slices.SortStableFunc(lists, func(a, b config.List) int { return b.Priority - a.Priority })
	commands := byList(j, lists)
	for _, l := range lists {
		a := &aList{List: l, feed: feeds[l.Name]}
		suffix := ""
		if a.feed != nil {
			a.taken = a.feed.Version() // before its contents, which may change
			contents := a.feed.Contents()
			if a.refused = refuse(c, l, contents); a.refused != nil {
				contents = nil
			}
			a.sources = s.add(a, "", contents)
			suffix = api.ByCommand
		}
		a.command = s.add(a, suffix, list.SetOf(commands[l.Name]...))
		s.lists = append(s.lists, a)
	}
	return s, nil
}

// add adds a list of the engine and returns its number.
func (s *state) add(a *aList, suffix string, contents *list.Set) uint16 {
	l := a.rule()
	l.Name += suffix
	l.Contents = contents
	s.loaded.Sources = append(s.loaded.Sources, ruleset.Source{List: l})
	return uint16(len(s.loaded.Sources))
}

// contents returns the active contents of a list of the engine.
func (s *state) contents(number uint16) *list.Set { return s.loaded.Sources[number-1].Contents }

// byList are the entries that were added by command, of all lists. What was added
// to block does not allow when its list has become one of the other kind.
func byList(j *journal.Journal, lists []config.List) map[string][]key.Key {
	allows := make(map[string]bool)
	for _, l := range lists {
		allows[l.Name] = l.Action == config.Allow
	}
	all := make(map[string][]key.Key)
	now := time.Now()
	for e := range j.Entries() {
		expired := !e.Expires.IsZero() && !e.Expires.After(now) // and could not be removed
		if !expired && allows[e.List] == e.Allow {
			all[e.List] = append(all[e.List], e.Key)
		}
	}
	return all
}

// configured returns the lists as the configuration has them.
func (s *state) configured() (all []config.List) {
	for _, l := range s.lists {
		all = append(all, l.List)
	}
	return all
}

func (s *state) list(name string) *aList {
	for _, l := range s.lists {
		if l.Name == name {
			return l
		}
	}
	return nil
}

// refuse returns why a list's entries must not become active: they would cover too
// much, or what must always pass.
func refuse(c *config.Config, l config.List, e *list.Set) error {
	if l.Action == config.Allow || e.Len() == 0 {
		return nil
	}
	if most := float64(c.MaxCoverage); most > 0 {
		for family, share := range map[string]float64{"IPv4": coverage(&e.V4), "IPv6": coverage(&e.V6)} {
			if share > most {
				return fmt.Errorf("list %s: it would cover %.3g %% of %s, where max_coverage is %.3g %%: "+
					"an entry is wrong, or max_coverage too low", l.Name, 100*share, family, 100*most)
			}
		}
	}
	matchesSources := l.Direction != engine.Destination
	for _, safe := range c.Failsafe.Prefixes {
		var p netip.Prefix
		var covered bool
		if safe.Addr().Is4() {
			p, covered = covers(e.V4.Side(true, matchesSources), list.V4Of(safe.Masked()))
		} else {
			p, covered = covers(e.V6.Side(true, matchesSources), list.V6Of(safe.Masked()))
		}
		if covered {
			return fmt.Errorf("list %s: its entry %v covers the failsafe prefix %v", l.Name, p, safe)
		}
	}
	return nil
}

// coverage returns the share of a family that prefixes cover. What several of them
// cover counts once, unless it is as a source and as a destination.
func coverage[P list.Prefix[P]](all *list.Prefixes[P]) (sum float64) {
	for _, prefixes := range []list.Sorted[P]{all.Plain, all.Src, all.Dst} {
		var last P
		covered := false
		for p := range prefixes.All() {
			// Prefixes come behind those that cover them.
			if !covered || p.Bits() < last.Bits() || p.Cut(last.Bits()) != last {
				sum, last, covered = sum+math.Ldexp(1, -p.Bits()), p, true
			}
		}
	}
	return min(sum, 1)
}

// covers finds an entry that covers a prefix.
func covers[P list.Prefix[P]](entries []list.Sorted[P], safe P) (netip.Prefix, bool) {
	for bits := range safe.Bits() + 1 {
		for _, e := range entries {
			if p := safe.Cut(bits); e.Has(p) {
				return p.Prefix(), true
			}
		}
	}
	return netip.Prefix{}, false
}

// keys are the keys that entries stand for in a list.
func keys(l engine.List, e list.Entries) []key.Key {
	var all []key.Key
	for _, p := range e.V4 {
		all = append(all, l.Keys(p.Prefix())...)
	}
	for _, p := range e.V6 {
		all = append(all, l.Keys(p)...)
	}
	return append(all, e.Flows...)
}

// rulesOf are the rules of a configuration, without its lists.
func rulesOf(c *config.Config) (r ruleset.Rules) {
	r.Mode, r.BitsPerKey, r.Monitor = c.Mode, c.BitsPerEntry, c.Monitor
	r.DropMalformed = c.Malformed == verdict.Drop
	r.FailsafePorts = c.Failsafe.Ports
	for _, p := range c.Failsafe.Prefixes {
		r.FailsafePrefixes = append(r.FailsafePrefixes, p.Prefix)
	}
	return r
}

// expires is when an entry of a TTL ends that is added now.
func expires(now time.Time, ttl time.Duration) time.Time {
	if ttl == 0 {
		return time.Time{}
	}
	return now.Add(ttl)
}
