package faults

import (
	"strings"
	"testing"
)

// Lists that would cover too much of the address space are rejected at the start, in a
// changed feed, in commands, and in a configuration. Entries over a failsafe prefix are
// left out of feeds, and rejected in commands.
func TestCoverage(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	const (
		wide = "64.0.0.0/2\n128.0.0.0/3\n" // 37.5 %
		over = "10.9.0.0/16\n10.0.0.2\n"   // the failsafe prefix, and a harmless entry
	)
	lists := func(more string) string {
		return more + `
failsafe: {prefixes: [10.9.9.0/24]}
lists:
  wide: {sources: [{file: ` + g.dir + `/wide}], max_shrink: 100%}
  over: {sources: [{file: ` + g.dir + `/over}], max_shrink: 100%}
  fine: {sources: [{file: ` + g.dir + `/fine}], max_shrink: 100%}
`
	}
	g.file("wide", wide)
	g.file("over", over)
	g.file("fine", "10.0.0.3\n")
	g.configure(lists(""))
	tooWide := []string{"list wide", "it would cover 37.5 % of IPv4, where max_coverage is 25 %"}
	leftOut := []string{"an entry is left out, because it covers a failsafe prefix", `"list":"over"`, "10.9.0.0/16", `"prefix":"10.9.9.0/24"`}
	d := g.begin()
	d.read = 0
	d.wait(append(tooWide, "feed failed")...)
	d.read = 0
	d.wait(leftOut...)
	g.filters("refused at the start", []string{"10.0.0.2", "10.0.0.3"}, []string{"130.0.0.1", "10.9.0.1", "10.9.9.1"})
	overOne := func(list string) {
		t.Helper()
		g.untilMetric(1, "weir_list_left_out", `list="`+list+`"`)
		if left := g.list(list).LeftOut; len(left) != 1 || left[0].Failsafe == "" {
			t.Errorf("weir lists says of %s: %+v", list, left)
		}
	}
	overOne("over")
	refused := func(want float64) {
		t.Helper()
		for _, name := range []string{"wide"} {
			g.untilMetric(2*want-1, "weir_feed_failing", `failure="refused"`, `list="`+name+`"`) // -1: no such metric
		}
		for _, name := range []string{"wide"} {
			if source := g.list(name).Feeds[0]; (source.Outcome == "failed") != (want == 1) || want == 1 && source.Error == "" {
				t.Errorf("weir lists says of %s: %+v", name, source)
			}
		}
	}
	refused(1)

	g.file("wide", "10.0.0.1\n")
	g.file("over", "10.0.0.2\n")
	g.ask(0, "refresh")
	held := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}
	g.filters("mended", held, []string{"130.0.0.1", "10.9.0.1"})
	refused(0)

	g.file("wide", wide)
	g.file("over", over)
	g.refuses([]string{"1 of 3"}, "refresh")
	g.filters("refused when updated", held, []string{"130.0.0.1", "10.9.0.1", "10.9.9.1"})
	refused(1)
	overOne("over")
	d.read = 0
	d.wait(append(tooWide, "the old contents stay")...)

	g.refuses([]string{"list manual: it would cover 50 % of IPv4", "max_coverage"}, "block", "128.0.0.0/1")
	g.refuses([]string{"list manual: its entry 10.9.9.0/24 covers the failsafe prefix"}, "block", "10.0.0.7", "10.9.9.0/24")
	g.filters("refused manual entries", held, []string{"130.0.0.1", "10.0.0.7", "10.9.9.1"})
	if n := g.list("manual").Entries; n != 0 {
		t.Errorf("refused commands have left %d entries", n)
	}

	// Good contents survive a crash, whatever the feeds contain by now.
	d.kill()
	d = g.begin()
	g.filters("refused, after a restart", held, []string{"130.0.0.1", "10.9.0.1", "10.9.9.1"})

	g.file("wide", "10.0.0.1\n")
	g.file("over", "10.0.0.2\n")
	g.ask(0, "refresh")
	g.configure(strings.Replace(lists(""), "10.9.9.0/24", "10.0.0.3", 1))
	g.ask(0, "reload")
	overOne("fine")
	g.filters("a failsafe prefix that is listed", []string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.3"})
	g.configure(lists(""))
	g.ask(0, "reload")
	g.configure(lists("max_coverage: 0.00000001%"))
	g.refuses([]string{"the old configuration stays active", "max_coverage"}, "reload")
	g.filters("a configuration is refused", held, nil)
	d.stop()
}
