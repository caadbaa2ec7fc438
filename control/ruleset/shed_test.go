package ruleset

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/feed"
	"weir/tests/must"
)

// Where an engine cannot be started, the list that is most likely the reason is left out, and said to be:
// the largest, or the one of the most shapes where the program was rejected.
func TestShed(t *testing.T) {
	const text = `
lists:
  large: {entries: [203.0.114.1, 203.0.114.3, 203.0.114.5, 203.0.114.7, 203.0.114.9], anti_lockout: false, aggregate: {ipv4: 24, at: 3}}
  various: {entries: ["tcp 198.51.100.1:* > *:22", "udp 198.51.100.0/25:* > *:53", "tcp 198.51.100.0/26:1 > 203.0.113.0/24:25"]%s}
  small: {entries: [198.51.100.7]}
`
	cause := errors.New("no memory")
	for _, c := range []struct {
		reason           error
		required, worst  string
		entries, derived int
	}{
		{Unbuilt{cause}, "", "large", 4, 0}, {fmt.Errorf("start: %w", Rejected{cause}), "", "various", 7, 1},
		{Rejected{cause}, ", required: true", "", 10, 1}, {cause, "", "", 10, 1},
	} {
		p := readText(t, fmt.Sprintf(text, c.required))
		if p.Shed(c.reason) != (c.worst != "") || p.Entries() != c.entries || p.Contents(p.List("large").DerivedNumber).Len() != c.derived {
			t.Errorf("%v: %d entries are left", c.reason, p.Entries())
		}
		for _, l := range p.Lists {
			if (l.Rejected != nil) != (l.Name == c.worst) || l.Rejected != nil && (!errors.Is(l.Rejected, cause) || !strings.Contains(l.Rejected.Error(), "list "+c.worst+": ")) {
				t.Errorf("%v: list %s: %v", c.reason, l.Name, l.Rejected)
			}
		}
		if problems := p.Problems(); c.worst != "" && (len(problems) != 1 || problems[0].List != c.worst || !strings.Contains(problems[0].Err.Error(), "not active: list "+c.worst)) || c.worst == "" && len(problems) > 0 {
			t.Errorf("%v: problems %v", c.reason, problems)
		}
	}
}

// A list of outgoing packets where none are filtered is named, and one of flows of too many combinations,
// of which the first are.
func TestWarnings(t *testing.T) {
	p := readText(t, "lists: {bad: {entries: [203.0.114.1]}}\n")
	for direction, want := range map[engine.Direction]bool{engine.Source: false, engine.Out: true} {
		p.List("bad").Direction = direction
		warned := slices.ContainsFunc(p.Warnings(), func(w string) bool { return strings.Contains(w, "list bad is of outgoing packets") })
		if warned != want {
			t.Errorf("direction %v: %q", direction, p.Warnings())
		}
	}
	for n, lines := range map[int]int{0: 0, maxBadLines: maxBadLines, maxBadLines + 2: maxBadLines + 1} {
		l := &List{Left: LeftOut{shapes: slices.Repeat([]api.SpareShape{{Shape: "tcp", Entries: 3, First: "tcp 203.0.114.1:1 > *"}}, n)}}
		got := l.warnings()
		if len(got) != lines || lines > maxBadLines && !strings.Contains(got[maxBadLines], "flows of 2 more combinations") || lines > 0 && !strings.Contains(got[0], "3 × tcp") {
			t.Errorf("%d combinations: %q", n, got)
		}
	}
}

// A source that could not be read, one whose contents are refused and one that is being activated filter
// nothing, each for its own reason, unless its list has entries.
func TestNotReady(t *testing.T) {
	path := t.TempDir() + "/missing"
	f, err := feed.Open(t.Context(), feed.Config{Name: "drop", Spec: feed.DefaultSpec(feed.Source{File: feed.Path(path)})}, "")
	if err != nil {
		t.Fatal(err)
	}
	p := &Ruleset{Lists: []*List{{From: f, FromFeed: f}}}
	p.Lists[0].Name, p.Lists[0].SourceNumber = "drop", p.add(p.Lists[0], "", nil)
	says := func(want string) {
		t.Helper()
		got := p.NotReady()
		if want == "" && len(got) == 0 {
			return
		}
		if len(got) != 1 || got[0].List != "drop" || !strings.Contains(got[0].Source, path) || want == "" || !strings.Contains(got[0].Problem, want) {
			t.Errorf("%+v, want %q", got, want)
		}
	}
	says("not read yet")
	_, _ = f.Fetch(t.Context())
	says("no such file")
	must.Write(t, path, "203.0.114.1\n")
	if _, err := f.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	says("is being activated")
	p.Lists[0].Rejected = errors.New("no room")
	says("no room")
	p.Lists[0].Refused = errors.New("too wide")
	says("too wide")
	if s := p.Summary(); s != "filtering 0 entries of 1 lists, sources that are not ready: 1" {
		t.Error(s)
	}
	p.Rules[0].Contents = sources("203.0.114.1")
	says("")
}
