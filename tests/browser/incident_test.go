package browser

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
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

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"weir/control/api"
	"weir/control/history"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
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
	w.set(selector, text)
}

// An incident, in the browser alone: a flood of 50,000 forged and 20 real sources, a
// customer's question, a feed that has gone bad, monitor mode, undo and rollback.
func TestFlood(t *testing.T) {
	path, l, feed := lab.Tool(t, "chromium"), lab.New(t), startProvider(t)
	w := &worker{desk: &desk{t: t}}
	w.startDaemon(l, fmt.Sprintf("  threat: {sources: [{url: %s/threat.txt}]}\n", feed.URL), "100pps")
	attack(t, l)
	w.startBrowser(path, 3*wait.Patience)
	w.open(false)
	began := time.Now()

	// Who: all are blocked at once.
	w.headlineOf("Heavy sources")
	w.until("all twenty are above the limit", `document.getElementById("heavy-src-packets")?.textContent.includes("Block 20") ?? false`)
	w.click("#heavy-src-packets")
	w.shows("result", "are blocked for an hour")
	w.click("#sure")
	w.shows("result", "and 19 more are blocked for 60 min, in list manual")
	w.headlineOf("most by list manual")
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
	w.headlineOf("would be dropped")
	w.until("the change can be undone", `document.getElementById("p-last").textContent.includes("monitor on")`)
	w.click("#revert")
	w.shows("result", "Undone: Monitor mode has ended")
	w.until("the alert is gone", `!document.getElementById("p-alerts").textContent.includes("Monitor mode")`)
	w.headlineOf("is dropped")

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

// shifts sums up what moves without the user having done something. The lines of the header and
// of a form move where a slow browser reads a page in parts, as their last parts come later.
const shifts = `window.shifts = 0; window.shifted = []; new PerformanceObserver(l => { for (const e of l.getEntries()) if (!e.hadRecentInput) {
	if (e.sources.length > 0 && e.sources.every(s => s.node?.parentElement?.closest("header, form > .row"))) continue;
	window.shifts += e.value;
	window.shifted.push(...e.sources.map(s => (s.node?.id || s.node?.parentElement?.id || s.node?.nodeName) + " " + [s.previousRect, s.currentRect].map(r => r.x + "," + r.y).join(" to ")));
} }).observe({type: "layout-shift", buffered: true});`

// The page does not grow with the number of lists, loads little, from here alone, and does
// not jump.
func TestFigures(t *testing.T) {
	for _, lists := range long.Or([]int{145}, []int{1, 145, 1000}) {
		t.Run(fmt.Sprint(lists), func(t *testing.T) {
			d, path, l := &desk{t: t}, lab.Tool(t, "chromium"), lab.New(t)
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
			d.startBrowser(path, 3*wait.Patience)
			for top := d.daemon.API().Top(); top == nil || len(top.Trackers) == 0 || len(top.Trackers[0].Flows) < 10 || top.Sources == nil || len(*top.Sources) < 10; top = d.daemon.API().Top() {
				if t.Context().Err() != nil || d.tab.Err() != nil {
					t.Fatal("no flood")
				}
				time.Sleep(20 * time.Millisecond)
			}
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
				t.Errorf("%d bytes, moved by %g: %s", bytes, moved, eval[string](d, "window.shifted.join()"))
			}
			heights := make(map[int64]int)
			d.looksRight(fmt.Sprintf("lists-%d-", lists), 1440, 768, 375)
			for width, most := range map[int64]int{1440: 4000, 768: 5000, 375: 7000} {
				d.do(chromedp.EmulateViewport(width, 900))
				if heights[width] = eval[int](d, "document.documentElement.scrollHeight"); heights[width] > most {
					t.Errorf("%d pixels high at %d", heights[width], width)
				}
				d.until(fmt.Sprintf("what blocks is in reach at %d px, without scrolling to the side", width), `(b => b.length > 0 && b.every(e => e.getBoundingClientRect().right <= Math.min(innerWidth, e.closest(".scroll").getBoundingClientRect().right)))([...document.querySelectorAll('#p-talkers button[name="block"]')])`)
			}
			t.Logf("%d lists: %d bytes, first contentful paint after %.0f ms, moved by %g, pixels high by width %v", lists, bytes, paint, moved, heights)

			// A list is found, whatever the number.
			last := fmt.Sprintf("customer-%04d", lists-1)
			d.do(chromedp.SendKeys(chromedp.CSS("#list"), strings.ToUpper(last)))
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

// The page of lists says what each is worth, by keyboard alone; a list leads to its sources, whose versions
// are shown, and one is returned to.
func TestLists(t *testing.T) {
	d, path, l := &desk{t: t}, lab.Tool(t, "chromium"), lab.New(t)
	dir := t.TempDir()
	other := filepath.Join(dir, "other.txt")
	if err := os.WriteFile(other, []byte("198.51.100.40\n203.0.113.77\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.startDaemon(l, fmt.Sprintf("  other: {sources: [{file: %s}]}\n", other), "400pps")
	d.flood(l)
	if err := os.WriteFile(other+".new", []byte("198.51.100.40\n203.0.113.77\n203.0.113.78\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other+".new", other); err != nil {
		t.Fatal(err)
	}
	if _, err := d.daemon.API().Refresh(t.Context(), "other", false); err != nil {
		t.Fatal(err)
	}
	d.startBrowser(path, 3*wait.Patience)
	for addresses := 0; addresses < 10; time.Sleep(50 * time.Millisecond) {
		w, err := d.daemon.API().Worth(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, of := range w.Lists {
			if of.Name == "scanners" {
				addresses = of.Addresses
			}
		}
	}
	d.open(false)
	d.tabTo(`a[href$="/worth"]`)
	d.do(chromedp.KeyEvent(kb.Enter))
	d.visible("#worth-form")
	d.until("all lists are there", `["scanners", "quiet", "other", "manual"].every(name => document.getElementById("w-" + name))`)
	d.tabTo("#list")
	d.do(chromedp.KeyEvent("SCAN"))
	d.until("it is found alone", `(a => a.length === 1 && a[0].textContent === "scanners")([...document.querySelectorAll('a[id^="w-"]')])`)
	d.tabTo("#w-scanners")
	d.do(chromedp.KeyEvent(kb.Enter))
	d.shows("p-worth", "It has dropped")
	d.shows("o-other", "other")
	d.do(chromedp.Evaluate[chromedp.Void](`document.getElementById("list").value = ""`))
	d.tabTo("#sort")
	d.do(chromedp.KeyEvent("n")) // name, by its first letter
	d.until("they are in order", `document.querySelector('a[id^="w-"]')?.textContent === "manual" && document.querySelectorAll('a[id^="w-"]').length > 3`)
	d.until("the list stays open", `document.getElementById("h-list")?.textContent === "scanners"`)
	d.looksRight("worth-")

	d.tabTo("#o-other")
	d.do(chromedp.KeyEvent(kb.Enter))
	d.until("the other is open", `document.getElementById("h-list")?.textContent === "other"`)
	d.tabTo(`#p-worth a[href$="lists?open=other#lists"]`)
	d.do(chromedp.KeyEvent(kb.Enter))
	d.visible("#lists")
	d.until("its versions are there", `document.querySelectorAll('[aria-label^="Versions of"] tbody tr').length === 2`)
	d.looksRight("versions-")
	d.click("#rollback")
	d.shows("result", "to the 2 before")
	d.click("#sure")
	d.shows("result", "has the 2 entries again")
	d.quiet()
}

// While no daemon runs the page is dimmed and says so. It goes on by itself in the same
// session after a restart, and ends with the session.
func TestRestart(t *testing.T) {
	d, path, l := &desk{t: t}, lab.Tool(t, "chromium"), lab.New(t)
	d.startDaemon(l, "", "400pps")
	d.flood(l)
	d.startBrowser(path, 3*wait.Patience)
	d.open(false)
	d.shows("live", "Live")
	d.stop()
	d.until("the page is dimmed", `document.body.classList.contains("dim") && document.getElementById("gone").textContent.includes("weir has not answered since")`)
	d.picture("dim")
	if eval[string](d, `getComputedStyle(document.getElementById("main")).pointerEvents`) != "none" {
		t.Error("buttons of the past can be clicked")
	}
	d.run()
	d.shows("live", "Live")
	if eval[bool](d, `document.body.classList.contains("dim") || document.getElementById("gone").textContent !== ""`) {
		t.Error("the page stays dimmed")
	}
	d.until("the loudest source can be blocked", fmt.Sprintf("document.querySelector(%q) !== null", blockLoud))
	d.click(blockLoud)
	d.shows("result", loud+" is blocked for 60 min")
	if _, err := d.daemon.API().EndConsole(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.shows("gone", "The session has ended. weir console")
}

// hasLine reports whether a chart has a curve in nearly all columns of its right half, and
// in how many columns a change.
const hasLine = `(() => {
	const canvas = document.querySelector("#past canvas"), style = getComputedStyle(document.documentElement);
	const one = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
	const colour = (name) => { one.fillStyle = style.getPropertyValue(name).trim(); one.fillRect(0, 0, 1, 1); return one.getImageData(0, 0, 1, 1).data; };
	const copy = document.createElement("canvas");
	[copy.width, copy.height] = [canvas.width, canvas.height];
	const context = copy.getContext("2d", {willReadFrequently: true});
	context.drawImage(canvas, 0, 0);
	const pixels = context.getImageData(0, 0, copy.width, copy.height).data;
	const count = (x, [r, g, b]) => { let n = 0; for (let y = 0; y < copy.height; y++) { const i = 4 * (y * copy.width + x); if (Math.abs(pixels[i] - r) + Math.abs(pixels[i + 1] - g) + Math.abs(pixels[i + 2] - b) < 30 && pixels[i + 3] > 200) n++; } return n; };
	const passed = colour("--passed"), warn = colour("--warn");
	let curve = 0, changes = 0, half = 0;
	for (let x = Math.floor(copy.width / 2); x < 0.9 * copy.width; x++) { half++; if (count(x, passed) > 0) curve++; }
	for (let x = 0; x < copy.width; x++) if (count(x, warn) > copy.height / 2) changes++;
	return [curve / half, changes];
})()`

// The history is a curve, with a line where something was changed, and can be zoomed.
func TestHistory(t *testing.T) {
	d, path, l := &desk{t: t, state: t.TempDir()}, lab.Tool(t, "chromium"), lab.New(t)
	now := time.Now()
	for from := now.Add(-time.Hour); from.Before(now.Add(-time.Minute)); from = from.Add(6 * time.Minute) { // fewer records than may wait
		h := history.Open(filepath.Join(d.state, "history"), now, slog.New(slog.NewTextHandler(t.Output(), nil)))
		for at := from; at.Before(from.Add(6*time.Minute)) && at.Before(now.Add(-time.Minute)); at = at.Add(history.Fine) {
			n := uint64(40_000 + 20_000*(at.Unix()/600%2))
			h.Add(at.Add(history.Fine), history.Sample{Interval: history.Fine, Reasons: []history.Reason{{Name: "clean", Count: history.Count{Packets: n}}, {Name: "blocked", Drops: true, Count: history.Count{Packets: n / 10}}}})
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
	change, err := json.Marshal(api.AuditRecord{Time: now.Add(-15 * time.Minute), Change: api.Block, List: "manual", First: []string{loud}, Entries: 1, Changed: 1, User: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.state, "audit.log"), append(change, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	d.startDaemon(l, "", "400pps")
	d.startBrowser(path, 3*wait.Patience)
	d.do(chromedp.EmulateViewport(1280, 900))
	d.open(false)
	d.headlineOf("No flood: ")
	d.do(chromedp.Evaluate[chromedp.Void](`document.getElementById("for").value = "1h", document.getElementById("for").dispatchEvent(new Event("change", {bubbles: true}))`))
	d.until("an hour is shown", `JSON.parse(document.getElementById("history").dataset.points)[0].length > 330`)
	d.until("the curve is drawn", "document.querySelector('#past canvas') !== null")
	d.until("it is a curve, with the change", fmt.Sprintf("(([curve, changes]) => curve > 0.9 && changes >= 1)(%s)", hasLine))
	d.picture("history")
	box := eval[[]float64](d, `(b => [b.left, b.top, b.width, b.height])((document.getElementById("past").scrollIntoView({block: "center"}), document.querySelector("#past .u-over")).getBoundingClientRect())`)
	mouse := func(kind input.DispatchMouseEventType, part float64) {
		t.Helper()
		if _, err := chromedp.Call(d.tab, input.DispatchMouseEvent, input.DispatchMouseEventParams{Type: kind, X: box[0] + part*box[2], Y: box[1] + box[3]/2, Button: input.MouseButtonLeft, ClickCount: 1}); err != nil {
			t.Fatal(err)
		}
	}
	// A quarter of an hour ago, and as long as the test has run: the pointer must be within 36 s.
	shown := fmt.Sprintf(`document.getElementById("mark").textContent.includes(%q)`, "block manual "+loud+", by ada")
	at, deadline := 0.76, wait.Deadline()
	for ; !eval[bool](d, shown) && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if at -= 0.01; at < 0.5 {
			at = 0.76
		}
		mouse("mouseMoved", at)
	}
	d.shows("mark", "block manual "+loud+", by ada")
	mouse("mouseMoved", 0.2)
	mouse("mousePressed", 0.2)
	mouse("mouseMoved", 0.4)
	mouse("mouseMoved", 0.5)
	mouse("mouseReleased", 0.5)
	d.until("a part is shown, without the change", fmt.Sprintf("(([curve, changes]) => curve > 0.9 && changes === 0)(%s)", hasLine))
	d.picture("zoomed")
	d.do(chromedp.Evaluate[chromedp.Void](`document.querySelector("#past .u-over").dispatchEvent(new MouseEvent("dblclick", {bubbles: true}))`))
	d.until("all is shown", fmt.Sprintf("(([curve, changes]) => curve > 0.9 && changes >= 1)(%s)", hasLine))
	d.quiet()
}

// headlineOf waits until the first line says something.
func (d *desk) headlineOf(text string) {
	d.t.Helper()
	d.until("the first line says "+text, fmt.Sprintf("document.querySelector('.headline')?.textContent.includes(%q) ?? false", text))
}
