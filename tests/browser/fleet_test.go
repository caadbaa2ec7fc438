package browser

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"weir/control/api"
	"weir/control/api/server"
	"weir/control/console"
	"weir/control/fleet/wire"
	"weir/tests/lab"
	"weir/tests/wait"
)

// hub is one with two nodes and a rollout, which changes with each question.
type hub struct {
	server.Hub // what the console does not use

	mu     sync.Mutex
	asked  uint64
	state  string // of the rollout
	blocks []string
}

func (h *hub) Fleet(context.Context) (api.HubStatus, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked++
	seen, at := time.Now(), func(n uint64) wire.Place { return wire.Place{Epoch: 7, Version: n} }
	node := func(name, state string, active uint64) api.FleetNode {
		return api.FleetNode{Name: name, Labels: []string{"paris", "edge"}, State: state, Seen: &seen, Report: &wire.Status{
			Version: "v1.0.0", Passed: 9000 * h.asked, Dropped: 4000 * h.asked, Lists: []wire.ListStatus{{Name: "drop", Active: at(active), Wanted: at(12)}},
		}}
	}
	return api.HubStatus{
		Connected: true,
		Lists: []api.FleetList{{
			Name: "drop", Action: api.Block, Entries: 1_200_000, Version: at(12), Published: at(12),
			Feeds: []api.FeedSource{{Source: "https://feeds.example.net/drop.txt", Outcome: "unchanged", Entries: 1_200_000, Read: &seen, Next: &seen}},
			Rollout: &api.FleetRollout{
				State: h.state, From: at(11), To: at(12), Wave: 1, Waves: []api.FleetWave{{Labels: []string{"canary"}, Mode: "rehearse", For: 600}, {Mode: "enforce"}}, Limit: 0.001,
				Nodes: 2, Confirmed: 1, Needed: 2, Passed: 48_000, WouldDrop: 12, WaitsFor: "edge-2", Top: []api.FleetAffected{{Node: "edge-1", Affected: wire.Affected{Source: "192.0.2.9", Entry: "192.0.2.0/24", Packet: "tcp 192.0.2.9:4000 > 198.51.100.1:443", Packets: 9}}},
			},
		}},
		Nodes: []api.FleetNode{node("edge-1", api.NodeCurrent, 12), node("edge-2", api.NodeBehind, 11)},
	}, nil
}

func (h *hub) Change(_ context.Context, c api.Change) (api.FleetChanged, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	done := api.FleetChanged{Changed: api.Changed{List: "block", Added: 1}, Published: true}
	if h.blocks = append(h.blocks, c.Entries[0]); c.Remove {
		done.Added, done.Removed = 0, 1
	}
	return done, nil
}

func (h *hub) Audit(int) []api.AuditRecord {
	return []api.AuditRecord{{Time: time.Now(), Change: "pause", List: "drop", User: "ada"}}
}

func (h *hub) Roll(_ context.Context, r api.FleetRoll) (api.FleetRolled, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state = map[string]string{api.RollPause: api.RolloutPaused, api.RollResume: api.RolloutRunning}[r.Do]
	return api.FleetRolled{Lists: []string{r.List}, Published: true}, nil
}

func (h *hub) Top(context.Context, []string, api.FleetTopQuestion) (api.FleetTop, error) {
	return api.FleetTop{Flows: []api.FlowRate{{Key: loud, Rate: 8200, Least: 8000, Share: 0.4, Nodes: 2}, {Key: second, Rate: 900, Least: 700, Share: 0.05, Nodes: 1}}}, nil
}

func (h *hub) Explain(_ context.Context, _ []string, packets string) (api.FleetExplanation, error) {
	e := api.Explanation{Answers: []api.Answer{{Packet: "from " + packets, Verdict: api.VerdictDrop, Reason: "blocked", List: "fleet.drop"}}}
	return api.FleetExplanation{Nodes: []api.NodeExplanation{{Node: "edge-1", Explanation: &e}, {Node: "edge-2", Problem: "no answer within 3s"}}}, nil
}

// The hub's page shows its fleet live, and pauses a rollout and blocks on all nodes, by
// keyboard alone.
func TestFleet(t *testing.T) {
	d, h := &desk{t: t}, &hub{state: api.RolloutRunning}
	path := lab.Tool(t, "chromium")
	c := console.NewHub(h, "127.0.0.1:9481", false, "test")
	server := httptest.NewServer(http.HandlerFunc(c.ServeHTTP))
	t.Cleanup(func() { c.End(); server.CloseClientConnections(); server.Close() })
	d.startBrowser(path, 3*wait.Patience)
	url := strings.Replace(c.Open(api.ConsoleRequest{}).URL, "http://127.0.0.1:9481", server.URL, 1)
	d.do(chromedp.Navigate(url))
	d.visible("#main")
	d.shows("live", "Live")
	d.shows("p-nodes", "wants 7.12")
	d.shows("p-talkers", loud)
	d.until("the chart is drawn", "document.querySelector('#chart canvas') !== null")
	d.shows("p-now", "Of nodes")

	d.tabTo("#roll-pause-drop")
	d.do(chromedp.KeyEvent(kb.Enter))
	d.shows("result", "The rollout of drop is paused")
	d.shows("p-rollouts", "paused")
	d.tabTo("#roll-resume-drop")
	d.do(chromedp.KeyEvent(kb.Enter))
	d.shows("result", "goes on")
	d.tabTo("#q")
	d.do(chromedp.KeyEvent(loud + kb.Enter))
	d.shows("answer", "1 of 2 nodes: edge-1")
	d.tabTo(`#p-talkers button[value="` + loud + `"]`)
	d.do(chromedp.KeyEvent(kb.Enter))
	d.shows("result", loud+" is blocked for 60 min, in list block on all nodes")
	d.looksRight("fleet-", 360, 768, 1280, 2560)
	d.tabTo("#undo")
	d.do(chromedp.KeyEvent(kb.Enter))
	d.shows("result", "Undone: "+loud)
	if len(h.blocks) != 2 {
		t.Errorf("changed %v", h.blocks)
	}
	d.quiet()
}
