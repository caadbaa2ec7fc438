package server

import (
	"context"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"weir/control/api"
)

// asked is a hub that notes which nodes it is asked about.
type asked struct {
	hubStub
	nodes []string
}

func (a *asked) Explain(_ context.Context, nodes []string, _ string) (e api.FleetExplanation, err error) {
	a.nodes = nodes
	return e, nil
}

func (a *asked) Top(_ context.Context, nodes []string, _ api.FleetTopQuestion) (t api.FleetTop, err error) {
	a.nodes = nodes
	return t, nil
}

// A question names any number of nodes up to a limit, and each other parameter once.
func TestNodesOfQuestion(t *testing.T) {
	query := func(n int) string { return strings.Repeat("&"+api.NodeParameter+"=edge", n) }
	for _, c := range []struct {
		query  string
		nodes  int
		status int
	}{
		{"", 0, 200}, {query(1), 1, 200}, {query(2), 2, 200}, {query(maxNamed), maxNamed, 200}, {query(maxNamed + 1), 0, 400},
	} {
		for _, path := range []string{api.FleetExplainPath + "?q=192.0.2.1", api.FleetTopPath + "?key=src"} {
			h, r := &asked{}, httptest.NewRecorder()
			HubHandler(h).ServeHTTP(r, httptest.NewRequest("GET", path+c.query, nil))
			if r.Code != c.status || !slices.Equal(h.nodes, slices.Repeat([]string{"edge"}, c.nodes)) {
				t.Errorf("%s with %d bytes of nodes: %d, %d nodes, %.80s", path, len(c.query), r.Code, len(h.nodes), r.Body)
			}
			twice := path + "&" + strings.SplitAfter(path, "?")[1]
			r = httptest.NewRecorder()
			HubHandler(h).ServeHTTP(r, httptest.NewRequest("GET", twice, nil))
			if r.Code != 400 || !strings.Contains(r.Body.String(), "is there 2 times") {
				t.Errorf("%s: %d, %s", twice, r.Code, r.Body)
			}
		}
	}
}
