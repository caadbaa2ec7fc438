package main

import (
	"os"
	"strings"
	"testing"

	"weir/tests/data"
	"weir/tests/long"
)

// The committed page follows from the sources; make bench-filters renews it. The section on
// filters is quick to compute; the others take WEIR_LONG=1. Times are as recorded.
func TestPageIsCurrent(t *testing.T) {
	text, err := os.ReadFile("../../../docs/comparison.md")
	if err != nil {
		t.Fatal(err)
	}
	fresh := sections
	if long.Enabled {
		data.Dir(t) // skips where there are no captures
	} else {
		fresh = nil
		for _, s := range sections {
			if s.quick {
				fresh = append(fresh, s)
			}
		}
	}
	want, err := compare(string(text), fresh, false)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) == want {
		return
	}
	lines := strings.Split(want, "\n")
	for i, got := range strings.Split(string(text), "\n") {
		if i >= len(lines) || got != lines[i] {
			t.Fatalf("docs/comparison.md is out of date from line %d on: run make bench-filters\nit has  %s\nwant    %s",
				i+1, got, lines[min(i, len(lines)-1)])
		}
	}
	t.Fatal("docs/comparison.md lacks its end: run make bench-filters")
}

// What depends on the machine stays as it is recorded, whatever is computed anew.
func TestTimesStay(t *testing.T) {
	old := "# x\n\n## Filters at one rate\nf\n\n## Filters in the same memory\nm\n\n## Sketches of heavy hitters\ns\n\n## Filters that know the traffic\nl\n\n" +
		"## Filters that mend their mistakes\nmm\n\n## Filters that grow\ng\n\n## Windows that slide\nw\n\n## Times\n" +
		timesBegin + "\nrecorded\n" + timesEnd + "\n"
	fresh := []section{{title: "Filters at one rate", write: func(p *page) error {
		p.text("anew")
		return nil
	}}}
	sectionsBefore := sections
	defer func() { sections = sectionsBefore }()
	sections = append(fresh, sections[1:]...)
	got, err := compare(old, fresh, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"\nanew\n", "\nm\n", "\ns\n", "\nl\n", "\nmm\n", "\ng\n", "\nw\n", timesBegin + "\nrecorded\n" + timesEnd} {
		if !strings.Contains(got, part) {
			t.Errorf("the page lacks %q:\n%s", part, got)
		}
	}
	if strings.Contains(got, "\nf\n") {
		t.Error("the old section is still there")
	}
	if _, err := compare("", fresh, false); err == nil {
		t.Error("a page without the other sections is no error")
	}
}
