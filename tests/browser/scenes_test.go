package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"weir/control/api"
	"weir/control/console"
	"weir/control/observe/events"
	"weir/tests/lab"
	"weir/tests/seed"
	"weir/tests/wait"
)

// played is a daemon of one scene after another.
type played struct {
	console.Daemon // what the page does not use here

	mu  sync.Mutex
	top api.Top
}

func (p *played) Top() *api.Top {
	p.mu.Lock()
	defer p.mu.Unlock()
	top := p.top
	return &top
}

func (p *played) Status() api.Status { return api.Status{Version: "test", Mode: "exact"} }

func (p *played) Lists() (all api.Lists) {
	for _, l := range p.Top().Filter.Lists {
		all.Lists = append(all.Lists, api.List{Name: api.ListOf(l.Name), Action: api.Block, Entries: 9})
	}
	return all
}

func (p *played) Audit(int) []api.AuditRecord { return nil }

func (p *played) Entries(context.Context, api.EntriesQuestion) (api.Entries, error) {
	return api.Entries{}, nil
}

func (p *played) Worth(context.Context) (api.ListsWorth, error) { return api.ListsWorth{}, nil }

func (p *played) Events(events.Want) (<-chan events.Event, func()) {
	return make(chan events.Event), func() {}
}

// History has two hours at a thousand packets a second.
func (p *played) History(_ context.Context, q api.HistoryQuestion) (h api.History, err error) {
	h.Step = 3600
	for i := range 2 {
		h.Points = append(h.Points, api.HistoryPoint{Time: time.Now().Add(time.Duration(i-2) * time.Hour), Seconds: 3600, Passed: 3_600_000})
	}
	return h, nil
}

// The page's first sentence agrees with its own tables in random scenes of calm and flood: with what drops packets,
// in their order, and with the share of them all.
func TestScenes(t *testing.T) {
	const scenes = 20
	random := seed.New(t)
	d, p := &desk{t: t}, &played{}
	path := lab.Tool(t, "chromium")
	c := console.New(p, "127.0.0.1:9479", false, "test")
	server := httptest.NewServer(http.HandlerFunc(c.ServeHTTP))
	t.Cleanup(func() { c.End(); server.CloseClientConnections(); server.Close() })
	d.startBrowser(path, 3*wait.Patience)
	url := strings.Replace(c.Open(api.ConsoleRequest{}).URL, "http://127.0.0.1:9479", server.URL, 1)
	words := map[string]int{}
	for i := range scenes {
		top := api.Top{Time: time.Unix(1_700_000_000+int64(i), 0), Uptime: 60}
		kinds := 3
		if i%4 == 3 { // calm, which is rare by chance
			kinds = 2
		}
		rate := func() float64 { return float64(1 + random.IntN([]int{3, 300, 30_000}[random.IntN(kinds)])) }
		add := func(reason string, drops bool, pps float64) {
			top.Reasons = append(top.Reasons, api.ReasonRate{Reason: reason, Packets: pps, Drops: drops})
			if top.Packets += pps; drops {
				top.Dropped += pps
			}
		}
		add("clean", false, rate())
		for _, reason := range []string{"policed", "rate-limited", "heavy", "malformed"} {
			if random.IntN(3) == 0 {
				add(reason, true, rate())
			}
		}
		if random.IntN(2) == 0 {
			blocked := 0.0
			for n := range 1 + random.IntN(3) {
				pps := rate()
				top.Filter.Lists = append(top.Filter.Lists, api.ListRate{Name: fmt.Sprintf("list-%d", n), Packets: pps})
				blocked += pps
			}
			add("blocked", true, blocked)
		}
		if kinds == 3 && random.IntN(2) == 0 { // sources that stand out, or forged ones, none of which does
			tracker := api.Tracker{Key: "src", Unit: "packets", Heavy: 1, Flows: []api.Flow{{Key: loud, Heavy: true, Share: 0.5}}}
			if random.IntN(2) == 0 {
				tracker.Spread, tracker.Flows[0].Share = 11_234, 0.015
			}
			top.Trackers = []api.Tracker{tracker}
		}
		p.mu.Lock()
		p.top = top
		p.mu.Unlock()
		if i == 0 {
			d.do(chromedp.Navigate(url))
			d.visible("#main")
		}
		d.until("the scene is shown", fmt.Sprintf("+document.getElementById('figures').dataset.time === %d", top.Time.Unix()))
		var shown struct {
			Headline string
			Rows     [][]string // of the table Caught by: name, rate, share
			Dropped  string     // by the figures
		}
		text := eval[string](d, `JSON.stringify({headline: document.querySelector(".headline").textContent,
			rows: [...document.querySelectorAll("#p-caught tbody tr")].map(r => [...r.children].map(c => c.textContent.trim())),
			dropped: document.getElementById("figures").dataset.dropped})`)
		if err := json.Unmarshal([]byte(text), &shown); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s %v", shown.Headline, shown.Rows)
		word, _, _ := strings.Cut(shown.Headline, ":")
		words[word]++
		for _, problem := range agrees(shown.Headline, shown.Rows, &top) {
			t.Errorf("scene %d: %s\n%s\n%v", i, problem, shown.Headline, shown.Rows)
		}
	}
	t.Log(words)
	if len(words) < 3 {
		t.Errorf("too few kinds of scenes: %v", words)
	}
	d.quiet()
}

var cause = regexp.MustCompile(`(\d+\.\d) % ([a-z][a-z-]*)`)

// agrees returns how a headline contradicts the table Caught by, and the traffic.
func agrees(headline string, rows [][]string, top *api.Top) (problems []string) {
	table, held, heavy := map[string]float64{}, 0.0, false
	lists := 0.0
	for _, row := range rows {
		if len(row) < 3 {
			continue
		}
		share, err := strconv.ParseFloat(strings.TrimSuffix(row[2], " %"), 64)
		if err != nil {
			problems = append(problems, "no share in "+strings.Join(row, " "))
		}
		reason, other := strings.CutPrefix(row[0], "no list: ")
		if !other {
			lists += share
			continue
		}
		table[reason] = share
	}
	said, before, sum := cause.FindAllStringSubmatch(headline, -1), 101.0, 0.0
	for _, s := range said[min(1, len(said)):] { // after the share of all
		share, _ := strconv.ParseFloat(s[1], 64)
		if share > before {
			problems = append(problems, "not the most first: "+s[0])
		}
		before, sum = share, sum+share
		want, known := table[s[2]]
		if s[2] == "by" {
			want, known = lists, true
		}
		if !known || share < want-0.2 || share > want+0.2 {
			problems = append(problems, fmt.Sprintf("it says %s, and the table %.1f %%", s[0], want))
		}
	}
	whole := 100 * top.Dropped / top.Packets
	if len(said) == 0 && whole >= 0.1 {
		problems = append(problems, "it does not say what is dropped")
	}
	if len(said) > 0 {
		if share, _ := strconv.ParseFloat(said[0][1], 64); share < whole-0.1 || share > whole+0.1 || len(said) > 1 && (sum < share-0.3 || sum > share+0.3) {
			problems = append(problems, fmt.Sprintf("of %.1f %% that are dropped it says %.1f, and %.1f by cause", whole, share, sum))
		}
	}
	for _, r := range top.Reasons {
		if slices.Contains([]string{"policed", "rate-limited", "heavy"}, r.Reason) {
			held += r.Packets
		}
	}
	for _, tracker := range top.Trackers {
		heavy = heavy || tracker.Spread == 0 && tracker.Heavy > 0
	}
	above := top.Packets >= 3000 // three times what is usual in History
	want := "No flood"
	switch {
	case held > 0.2*top.Packets:
		want = "Flood held off"
	case above:
		want = "Flood"
	case heavy:
		want = "Heavy sources"
	}
	if word, _, _ := strings.Cut(headline, ":"); word != want {
		problems = append(problems, fmt.Sprintf("it says %q, and is to say %q", word, want))
	}
	return problems
}
