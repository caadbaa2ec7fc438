package browser

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/lab"
	"weir/tests/long"
)

// provider has a feed, whose addresses others choose.
type provider struct {
	*httptest.Server
	bad atomic.Bool // it lists a customer, and others besides
}

func startProvider(t *testing.T) *provider {
	p := &provider{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for i := range 5000 {
			fmt.Fprintf(w, "100.100.%d.%d\n", i/250, i%250)
		}
		if p.bad.Load() {
			for i := range 500 {
				fmt.Fprintf(w, "100.101.%d.%d\n", i/250, i%250)
			}
			_, _ = io.WriteString(w, customer+"\n")
		}
	}))
	t.Cleanup(p.Close)
	return p
}

// customer asks why nothing answers.
const customer = "198.51.100.200"

// attack sends from twenty sources, and from forged addresses, of which each sends few
// packets; and the customer, who sends a little.
func attack(t *testing.T, l *lab.Lab) {
	t.Helper()
	const rate, forged, own = 6000, 50_000, 20
	r := rand.New(rand.NewPCG(1, 2))
	frame := func(src netip.Addr) []byte {
		f := packet.Frame(key.Tuple{Src: src, Dst: l.B.IPv4, Proto: 6, HasPorts: true, SrcPort: uint16(1024 + r.IntN(60_000)), DstPort: 443})
		copy(f, l.B.MAC)
		return append(f, make([]byte, 20)...)
	}
	var sources, others [][]byte
	for i := range own {
		sources = append(sources, frame(netip.AddrFrom4([4]byte{198, 51, 100, byte(101 + i)})))
	}
	for range forged {
		others = append(others, frame(netip.AddrFrom4([4]byte{byte(20 + r.IntN(60)), byte(r.IntN(256)), byte(r.IntN(256)), byte(r.IntN(256))})))
	}
	asks := frame(netip.MustParseAddr(customer))
	tx, stop, ended := l.A.Sender(t), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		each := time.NewTicker(5 * time.Millisecond)
		defer each.Stop()
		sent, began := 0, time.Now()
		for {
			select {
			case <-stop:
				return
			case <-each.C:
			}
			// After a pause, what was not sent is left out: the rate matters.
			for n := 0; n < 600 && float64(sent) < time.Since(began).Seconds()*rate; n, sent = n+1, sent+1 {
				next := others[r.IntN(len(others))]
				switch {
				case sent%100 == 0:
					next = asks
				case sent%20 > 8: // 55 % of the packets
					next = sources[sent/20%own]
				}
				if err := tx.SendAll(next); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-ended })
}

// worker counts what the operator does.
type worker struct {
	*desk
	clicks, typed int
}

func (w *worker) click(selector string) { w.t.Helper(); w.clicks++; w.desk.click(selector) }

func (w *worker) enter(selector, text string) {
	w.t.Helper()
	w.typed += len(text)
	w.do(chromedp.SetValue(selector, text))
}

// headline waits until the first line says something.
func (w *worker) headline(text string) {
	w.t.Helper()
	w.until("the first line says "+text, fmt.Sprintf("document.querySelector('.headline')?.textContent.includes(%q) ?? false", text))
}

// An incident, in the browser alone: a flood of 50,000 forged and 20 real sources, a
// customer's question, a feed that has gone bad, monitor mode, undo and rollback.
func TestFlood(t *testing.T) {
	path, l, feed := chromium(t), lab.New(t), startProvider(t)
	w := &worker{desk: &desk{t: t}}
	w.startDaemon(l, fmt.Sprintf("  threat: {sources: [{url: %s/threat.txt}]}\n", feed.URL), "100pps")
	attack(t, l)
	w.startBrowser(path, 3*patience)
	w.open(false)
	began := time.Now()

	// Who: all are blocked at once.
	w.headline("Heavy sources")
	w.until("all twenty are above the limit", `document.getElementById("heavy-src")?.textContent.includes("Block 20") ?? false`)
	w.click("#heavy-src")
	w.shows("result", "are blocked for an hour")
	w.click("#sure")
	w.shows("result", "and 19 more are blocked for 60 min, in list manual")
	w.headline("most by list manual")
	w.shows("p-last", "block manual")
	blocked := time.Since(began)

	// The feed goes bad: a customer is in it.
	feed.bad.Store(true)
	w.click("#l-threat")
	w.click("#refresh")
	w.shows("result", "new, 5,501 entries")
	w.enter("#q", customer)
	w.click("#explain button")
	w.shows("answer", "from "+customer+": drop")
	w.shows("answer", "threat.txt:5501")
	w.click("#allow-asked")
	w.shows("result", customer+" is allowed for 60 min")
	w.click("#explain button")
	w.shows("answer", "from "+customer+": pass")
	w.click("#rollback")
	w.shows("result", "to the 5,000 before")
	w.click("#sure")
	w.shows("result", "has the 5,000 entries again")
	w.until("the list shows it", `document.querySelector(".opened")?.textContent.includes("5,000 entries") ?? false`)

	// Is it us? Nothing is dropped for a while.
	w.click("#monitor")
	w.shows("result", "In monitor mode nothing is dropped")
	w.click("#sure")
	w.shows("p-alerts", "Monitor mode: nothing is dropped.")
	w.headline("would be dropped")
	w.until("the change can be undone", `document.getElementById("p-last").textContent.includes("monitor on")`)
	w.click("#revert")
	w.shows("result", "Undone: Monitor mode has ended")
	w.until("the alert is gone", `!document.getElementById("p-alerts").textContent.includes("Monitor mode")`)
	w.headline("is dropped")

	// The allowed customer is undone by the change's own button.
	w.click(`#p-entries button[value="allow manual-allow ` + customer + `"], #p-entries button[value$=" ` + customer + `"]`)
	w.shows("result", customer+" is no longer allowed")
	w.click("#undo")
	w.shows("result", "Undone: "+customer+" is allowed")
	w.shows("p-audit", "rollback list")
	took := time.Since(began)
	w.quiet()
	t.Logf("the flood is blocked after %.1f s; all took %.1f s, %d clicks and %d characters", blocked.Seconds(), took.Seconds(), w.clicks, w.typed)
	if w.clicks > 16 || w.typed > len(customer) {
		t.Errorf("%d clicks and %d characters", w.clicks, w.typed)
	}
}

// shifts sums up what moves without the user having done something.
const shifts = `window.shifts = 0; new PerformanceObserver(l => { for (const e of l.getEntries()) if (!e.hadRecentInput) window.shifts += e.value; }).observe({type: "layout-shift", buffered: true});`

// The page does not grow with the number of lists, loads little, from here alone, and does
// not jump.
func TestFigures(t *testing.T) {
	for _, lists := range long.Or([]int{145}, []int{1, 145, 1000}) {
		t.Run(fmt.Sprint(lists), func(t *testing.T) {
			d, path, l := &desk{t: t}, chromium(t), lab.New(t)
			dir, text := t.TempDir(), ""
			for i := range lists {
				file := filepath.Join(dir, fmt.Sprintf("customer-%04d.txt", i))
				if err := os.WriteFile(file, fmt.Appendf(nil, "100.64.%d.%d\n", i/256, i%256), 0o600); err != nil {
					t.Fatal(err)
				}
				text += fmt.Sprintf("  customer-%04d: {sources: [{file: %s}]}\n", i, file)
			}
			d.startDaemon(l, text, "400pps")
			d.flood(l)
			d.startBrowser(path, 3*patience)
			if _, err := chromedp.Call(d.tab, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: shifts}); err != nil {
				t.Fatal(err)
			}
			d.do(chromedp.EmulateViewport(1440, 900))
			d.open(false)
			d.until("a list catches something", `document.getElementById("c-scanners") !== null`)
			before := eval[string](d, "document.getElementById('figures').dataset.time")
			d.until("panels change", fmt.Sprintf("+document.getElementById('figures').dataset.time > +%q + 1", before))
			if first := eval[bool](d, `["c-scanners", "q", "entry", "h-last"].every(id => document.getElementById(id).getBoundingClientRect().bottom <= innerHeight)`); !first {
				t.Error("the first screen lacks who, what catches it, the last change or the forms")
			}
			moved := eval[float64](d, "window.shifts")
			paint := eval[float64](d, `performance.getEntriesByName("first-contentful-paint")[0].startTime`)
			bytes := eval[int](d, `performance.getEntriesByType("resource").concat(performance.getEntriesByType("navigation")).reduce((n, e) => n + e.transferSize, 0)`)
			if others := eval[string](d, `performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith(location.origin + "/")).join()`); others != "" {
				t.Errorf("loads %s", others)
			}
			if moved > 0.005 || bytes > 100_000 {
				t.Errorf("%d bytes, moved by %g", bytes, moved)
			}
			heights := make(map[int64]int)
			for width, most := range map[int64]int{1440: 4000, 375: 7000} {
				d.do(chromedp.EmulateViewport(width, 900))
				if heights[width] = eval[int](d, "document.documentElement.scrollHeight"); heights[width] > most {
					t.Errorf("%d pixels high at %d", heights[width], width)
				}
				d.picture(fmt.Sprintf("lists-%d-%d", lists, width))
			}
			t.Logf("%d lists: %d bytes, first contentful paint after %.0f ms, moved by %g, pixels high by width %v", lists, bytes, paint, moved, heights)

			// A list is found, whatever the number.
			last := fmt.Sprintf("customer-%04d", lists-1)
			d.do(chromedp.SendKeys("#list", strings.ToUpper(last)))
			d.until("it is found alone", fmt.Sprintf(`(a => a.length === 1 && a[0].textContent === %q)([...document.querySelectorAll('#p-lists a[id^="l-"]')])`, last))
			d.do(chromedp.Evaluate[chromedp.Void](`document.getElementById("list").value = "", document.getElementById("sort").value = "name", document.getElementById("sort").dispatchEvent(new Event("input", {bubbles: true}))`))
			d.until("they are in order", `document.querySelector('#p-lists a[id^="l-"]')?.textContent === "customer-0000"`)
			d.click("#all")
			d.until("all are shown", fmt.Sprintf(`document.querySelectorAll('#p-lists a[id^="l-"]').length === %d`, min(lists+4, 1000)))
			if height := eval[int](d, "document.documentElement.scrollHeight"); height > heights[375]+500 {
				t.Errorf("%d pixels high with all lists", height)
			}
			d.quiet()
		})
	}
}
