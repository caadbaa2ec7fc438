package daemon

import (
	"fmt"
	"log/slog"
	"testing"

	"weir/control/api"
	"weir/control/explain"
	"weir/control/observe"
	"weir/tests/lab"
)

// A destination depends on all lists that match sources. With many of them, that is one line,
// from a daemon and from a configuration.
func TestExplainManyLists(t *testing.T) {
	const lists, question = 20, "> 192.0.2.77"
	r := configure(t, lab.New(t).B)
	var files []string
	for i := range lists {
		files = append(files, feedFile(t, fmt.Sprintf("feed%d.txt", i), firstSource+"\n"))
	}
	r.lists(t, files...)

	asked, err := explain.ParseQuestion(question)
	if err != nil {
		t.Fatal(err)
	}
	c, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Prepare(t.Context(), c, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	g, err := p.Build()
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	d := begin(t, r)
	running, err := d.api.Explainer.Explain(t.Context(), question, true)
	if err != nil {
		t.Fatal(err)
	}
	for who, e := range map[string]api.Explanation{"daemon": running, "configuration": observe.Explanation(question, p.Explain(g, asked...)...)} {
		for _, a := range e.Answers {
			if n := len(a.Depends); n != 1 || a.Depends[0].Lists != lists {
				t.Errorf("%s: depends on %+v, want one line for %d lists", who, a.Depends, lists)
			}
		}
	}
}
