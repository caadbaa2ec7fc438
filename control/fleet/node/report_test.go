package node

import (
	"testing"
	"time"
)

// A hub that starts may miss the first report of a connection. Until it publishes, reports go on.
func TestReportsUntilTheHubIsHeard(t *testing.T) {
	joined := time.Now()
	for _, c := range []struct {
		name       string
		heard, now time.Time
		often      bool
	}{
		{"nothing came", time.Time{}, joined.Add(time.Second), true},
		{"nothing came since the last connection", joined.Add(-time.Minute), joined.Add(4 * time.Second), true},
		{"the hub has published", joined.Add(time.Second), joined.Add(2 * time.Second), false},
		{"nothing comes", time.Time{}, joined.Add(reportAgain), false},
	} {
		n := &Node{heard: c.heard}
		if often := n.reportAfter(c.now, joined) < time.Second; often != c.often {
			t.Errorf("%s: each second %t, want %t", c.name, often, c.often)
		}
	}
}
