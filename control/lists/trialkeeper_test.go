package lists

import (
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

// trialOwner has lists that the configuration enforces.
type trialOwner struct {
	lists   map[string]*api.Trial
	fails   error            // of Decide
	holds   map[string]error // of Holds
	asked   int              // for Holds
	ended   []string
	follows Trials
}

func (o *trialOwner) Trial(list string) (*api.Trial, bool) { t, ok := o.lists[list]; return t, ok }

func (o *trialOwner) Decide(next Trials) error {
	if o.fails != nil {
		return o.fails
	}
	o.follows = next
	for name := range o.lists {
		o.lists[name] = next.Of(name, true)
	}
	return nil
}

func (o *trialOwner) Holds(list string) error { o.asked++; return o.holds[list] }
func (o *trialOwner) Ended(list string)       { o.ended = append(o.ended, list) }

// keepTrials returns a keeper of lists a, b and c, and what reads its file.
func keepTrials(t *testing.T) (*TrialKeeper, *trialOwner, func() savedTrials) {
	t.Helper()
	o := &trialOwner{lists: map[string]*api.Trial{"a": nil, "b": nil, "c": nil}, holds: make(map[string]error)}
	k := &TrialKeeper{Owner: o, Path: filepath.Join(t.TempDir(), TrialFile), Log: slog.New(slog.DiscardHandler)}
	return k, o, func() (s savedTrials) {
		t.Helper()
		text, err := os.ReadFile(k.Path)
		if err == nil {
			err = json.Unmarshal(text, &s)
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// offFor is a decision to put a list on trial for a time.
func offFor(d time.Duration) api.Trial {
	return newTrial(api.EnforceChange{Off: true, After: d.Seconds()}, true, "root", time.Now())
}

// noRoom makes each Save of a keeper fail.
func noRoom(t *testing.T, k *TrialKeeper) {
	t.Helper()
	k.Path = filepath.Join(filepath.Dir(k.Path), "none", TrialFile)
}

// A decision that cannot be saved, or that lists cannot follow, changes nothing.
func TestDecisionFails(t *testing.T) {
	k, o, read := keepTrials(t)
	if err := k.Set("a", offFor(time.Hour)); err != nil {
		t.Fatal(err)
	}
	same := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "list b stays as it was") {
			t.Errorf("%s: %v", what, err)
		}
		if len(k.Decided()) != 1 || o.lists["a"] == nil || o.lists["b"] != nil {
			t.Errorf("%s: %v, lists %v", what, k.Decided(), o.lists)
		}
	}
	o.fails = errors.New("no memory")
	same("lists do not follow", k.Set("b", offFor(time.Hour)))
	if s := read(); len(s.Lists) != 1 {
		t.Errorf("saved: %v", s.Lists)
	}
	o.fails = nil
	noRoom(t, k)
	same("it is not saved", k.Set("b", offFor(time.Hour)))
}

// A trial that is over ends, also where that cannot be saved, but not what its owner holds. What
// fails is tried again.
func TestEnd(t *testing.T) {
	k, o, read := keepTrials(t)
	for _, list := range []string{"a", "b", "c"} {
		if err := k.Set(list, offFor(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	delete(o.lists, "c") // by a configuration
	held := errors.New("it would cut you off")
	o.holds["b"] = held
	now := time.Now()
	want := func(what string, after time.Duration, hold, err error, enforced ...string) {
		t.Helper()
		h, got := k.End(now.Add(after))
		if !errors.Is(got, err) || h["b"] != hold || strings.Join(o.ended, " ") != strings.Join(enforced, " ") {
			t.Errorf("%s: %v, %v; ended are %q, want %v, %v, %q", what, h, got, o.ended, hold, err, enforced)
		}
		for _, list := range []string{"a", "b"} {
			if on := o.lists[list] != nil; on == strings.Contains(strings.Join(enforced, " "), list) {
				t.Errorf("%s: list %s is on trial: %t", what, list, on)
			}
		}
	}
	want("before", 59*time.Second, nil, nil)
	o.fails = errors.New("no memory")
	want("lists do not follow", time.Minute+time.Second, held, o.fails)
	failed := o.fails
	o.fails = nil
	want("too early", time.Minute+2*time.Second, held, failed)
	want("again", time.Minute+2*trialRetry, held, nil, "a")
	asked := o.asked
	if want("held, too early", time.Minute+2*trialRetry+trialRetry/2, held, nil, "a"); o.asked != asked {
		t.Error("a trial that is held is tried again at once")
	}
	if want("held, in time", time.Minute+3*trialRetry, held, nil, "a"); o.asked != asked+1 {
		t.Errorf("a trial that is held is tried %d times, want one", o.asked-asked)
	}
	if s := read(); s.Lists["b"].EnforcedAt == nil || s.Lists["a"].EnforcedAt != nil {
		t.Errorf("saved: %v", s.Lists)
	}
	delete(o.holds, "b")
	noRoom(t, k)
	want("without room", time.Minute+4*trialRetry, nil, nil, "a", "b")
}

// Trials about lists that are gone, or of another configuration, are forgotten.
func TestFollow(t *testing.T) {
	k, o, read := keepTrials(t)
	for _, list := range []string{"a", "b", "c"} {
		if err := k.Set(list, offFor(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	delete(o.lists, "a")
	o.lists["b"] = &api.Trial{Configured: true}
	lines := k.Follow()
	if len(lines) != 2 || !strings.Contains(lines[0], "list a: ") || !strings.Contains(lines[1], "list b: ") {
		t.Errorf("%q", lines)
	}
	for what, d := range map[string]Trials{"decided": k.Decided(), "saved": read().Lists, "followed": o.follows} {
		if len(d) != 1 || d["c"].Since == nil {
			t.Errorf("%s: %v", what, maps.Clone(d))
		}
	}
	if lines := k.Follow(); lines != nil {
		t.Errorf("again: %q", lines)
	}
	next := &TrialKeeper{Owner: o, Path: k.Path, Log: k.Log}
	if next.Load(); len(next.Decided()) != 1 {
		t.Errorf("after a restart: %v", next.Decided())
	}
}

// A command changes a list unless it is as it says, or must not be enforced.
func TestCommand(t *testing.T) {
	k, o, _ := keepTrials(t)
	partners := errors.New("hosts have conversed with what it drops")
	asked := 0
	may := func() error { asked++; return partners }
	for _, c := range []struct {
		what    string
		command api.EnforceChange
		err     error
		changed bool
		asked   int
		trial   bool // then
	}{
		{"enforced already", api.EnforceChange{}, nil, false, 0, false},
		{"on trial", api.EnforceChange{Off: true}, nil, true, 0, true},
		{"with partners", api.EnforceChange{}, partners, false, 1, true},
		{"by force", api.EnforceChange{Force: true}, nil, true, 1, false},
	} {
		done, err := k.Command("a", c.command, "root", may)
		if !errors.Is(err, c.err) || done.Changed != c.changed || asked != c.asked || (o.lists["a"] != nil) != c.trial {
			t.Errorf("%s: %+v, %v, asked %d times, trial %v", c.what, done, err, asked, o.lists["a"])
		}
	}
}
