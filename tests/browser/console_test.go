// Package browser tests the console in a real browser: what an operator does in it, and
// how it looks. With WEIR_SCREENSHOTS=DIRECTORY it leaves pictures there.
package browser

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"weir/control/api"
	"weir/control/capture"
	"weir/control/config"
	"weir/control/daemon"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/lab"
	"weir/tests/wait"
)

// Sources of the flood: heavy hitters, and one that a list has.
const (
	loud   = "198.51.100.49"
	second = "198.51.100.48"
	listed = "198.51.100.3"
	most   = "198.51.100.40" // of those that lists have
)

// desk is a daemon under a flood, and a browser.
type desk struct {
	t      *testing.T
	state  string // its directory
	config *config.Config
	daemon *daemon.Daemon
	stop   func() // the daemon
	tab    context.Context

	mu       sync.Mutex
	messages []string // of the browser's console
}

type fixed struct{ c *config.Config }

func (f fixed) Read() (*config.Config, error) { return f.c, f.c.Validate() }

func setUp(t *testing.T) *desk {
	t.Helper()
	return setUpFor(t, 3*wait.Patience)
}

// setUpFor is setUp with a time after which the browser ends.
func setUpFor(t *testing.T, during time.Duration) *desk {
	t.Helper()
	d := &desk{t: t}
	path := lab.Tool(t, "chromium")
	l := lab.New(t)
	d.startDaemon(l, "", "400pps")
	d.flood(l)
	d.startBrowser(path, during)
	return d
}

// flood sends from many sources, some of which are listed.
func (d *desk) flood(l *lab.Lab) {
	d.t.Helper()
	dst := l.B.IPv4
	l.A.StartFlood(d.t, 1, func(src netip.Addr) []byte {
		frame := packet.Frame(key.Tuple{Src: src, Dst: dst, Proto: 17, HasPorts: true, SrcPort: 1000, DstPort: 2000})
		copy(frame, l.B.MAC)
		return append(frame, make([]byte, 60)...)
	})
}

func (d *desk) startBrowser(path string, during time.Duration) {
	t := d.t
	t.Helper()
	allocator, cancel := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()))...)
	t.Cleanup(cancel)
	tab, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	d.tab, cancel = context.WithTimeout(tab, during)
	t.Cleanup(cancel)
	d.do(chromedp.Navigate("about:blank"))
	go func() {
		for m, err := range chromedp.Console(d.tab) {
			if err != nil {
				return
			}
			// htmx aborts a request when its form sends another. Failures have other messages.
			if strings.HasPrefix(m.Text, "htmx:sendAbort") || strings.HasPrefix(m.Text, "htmx:afterRequest") {
				continue
			}
			d.mu.Lock()
			d.messages = append(d.messages, fmt.Sprint(m.Type, ": ", m.Text))
			d.mu.Unlock()
		}
	}()
}

// startDaemon starts a daemon, with more lists than two, and a limit of sources.
func (d *desk) startDaemon(l *lab.Lab, lists, limit string) {
	t := d.t
	t.Helper()
	if d.state == "" {
		d.state = t.TempDir()
	}
	dir := d.state
	feed := filepath.Join(dir, "scanners.txt")
	if err := os.WriteFile(feed, []byte("198.51.100.0/28\n198.51.100.40\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "quiet.txt"), []byte("203.0.113.0/24\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("weir.yaml", fmt.Appendf(nil, `
interfaces: [{name: %s, netns: %s}]
pins: /sys/fs/bpf/%s
state_dir: %s
keep: false
api: {socket: %q}
console: {listen: %q}
learning: {elements: 0}
lists:
  scanners: {sources: [{file: %s}]}
  quiet: {sources: [{file: %s}]}
%strackers: [{key: src, threshold: %s, duration: 1s}]
`, l.B.Iface, l.B.Netns, l.B.Netns, dir, filepath.Join(dir, "sock"), lab.FreeAddress(d.t), feed, filepath.Join(dir, "quiet.txt"), lists, limit))
	if err != nil {
		t.Fatal(err)
	}
	d.config = c
	d.run()
	t.Cleanup(func() {
		d.stop()
		os.Remove("/sys/fs/bpf/" + l.B.Netns)
	})
}

// run starts the daemon, until stop.
func (d *desk) run() {
	t := d.t
	t.Helper()
	var err error
	if d.daemon, err = daemon.Start(t.Context(), daemon.Options{Config: fixed{d.config}, Version: "test", Log: slog.New(slog.NewTextHandler(t.Output(), nil))}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	running := d.daemon
	go func() { ended <- running.Run(ctx, nil, time.Hour, nil) }()
	d.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := running.Stop(); err != nil {
			t.Error(err)
		}
	}
}

func (d *desk) do(steps ...chromedp.Action[chromedp.Void]) {
	d.t.Helper()
	if err := chromedp.Do(d.tab, steps...); err != nil {
		d.t.Fatal(err)
	}
}

// eval evaluates an expression in the page.
func eval[T any](d *desk, expression string) T {
	d.t.Helper()
	v, err := chromedp.Run(d.tab, chromedp.Evaluate[T](expression))
	if err != nil {
		d.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits until an expression is true.
func (d *desk) until(what, expression string) {
	d.t.Helper()
	for deadline := wait.Deadline(); ; time.Sleep(50 * time.Millisecond) {
		so, err := chromedp.Run(d.tab, chromedp.Evaluate[bool](expression))
		if err != nil && !replaced(err) {
			d.t.Fatalf("%s: %v", expression, err)
		}
		if so {
			return
		}
		if time.Now().After(deadline) {
			d.picture("failed")
			d.t.Logf("the page:\n%s", eval[string](d, "document.body.innerText"))
			d.t.Fatalf("not so: %s", what)
		}
	}
}

// replaced reports whether an evaluation failed since the browser went to another page, as it
// does at the end of a session.
func replaced(err error) bool {
	return strings.Contains(err.Error(), "navigated or closed") || strings.Contains(err.Error(), "context was destroyed")
}

// shows waits until an element contains a text.
func (d *desk) shows(id, text string) {
	d.t.Helper()
	d.until(id+" shows "+text, fmt.Sprintf("document.getElementById(%q)?.textContent.includes(%q) ?? false", id, text))
}

// visible waits until an element is seen.
func (d *desk) visible(selector string) {
	d.t.Helper()
	d.until(selector+" is visible", fmt.Sprintf("document.querySelector(%q)?.checkVisibility() ?? false", selector))
}

// set sets the text of a field.
func (d *desk) set(selector, text string) {
	d.t.Helper()
	d.until(selector+" is there", fmt.Sprintf("(e => e && (e.value = %q, true) || false)(document.querySelector(%q))", text, selector))
}

// open opens the console.
func (d *desk) open(readOnly bool) {
	d.t.Helper()
	opened, err := d.daemon.API().OpenConsole(d.t.Context(), api.ConsoleRequest{ReadOnly: readOnly})
	if err != nil {
		d.t.Fatal(err)
	}
	d.do(chromedp.Navigate(opened.URL))
	d.visible("#main")
}

// picture leaves a picture, if they are wanted.
func (d *desk) picture(name string) {
	d.t.Helper()
	dir := os.Getenv("WEIR_SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(d.tab, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)
	}
	if err != nil {
		d.t.Error(err)
	}
}

// quiet checks that the browser has complained of nothing, such as the page's policy.
func (d *desk) quiet() {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.messages) > 0 {
		d.t.Errorf("the browser says\n%s", strings.Join(d.messages, "\n"))
	}
}

const (
	blockLoud   = `button[name="block"][value="` + loud + `"][id^="b-"]`
	explainLoud = `a[id^="x-"][id$="` + loud + `"]`
)

// click clicks an element as soon as it is there: panels change each second. It waits for the
// scripts, without which a form goes to another page: htmx takes a page up when it is complete,
// and what it adds to one a moment later.
func (d *desk) click(selector string) {
	d.t.Helper()
	d.until(selector+" is there", fmt.Sprintf(`(e => document.readyState === "complete" && e && !e.closest(".htmx-added") && (e.click(), true) || false)(document.querySelector(%q))`, selector))
}

// An incident in the page alone: the flood is seen, its largest source explained, blocked,
// seen to be dropped, and released again. The page looks right at each width, in both
// themes.
func TestIncident(t *testing.T) {
	d := setUp(t)
	d.open(false)
	d.until("the page is painted", "performance.getEntriesByType('paint').length > 0")
	if paint := eval[float64](d, "performance.getEntriesByType('paint')[0].startTime"); paint > 5000 {
		t.Errorf("the first paint was after %.0f ms", paint)
	} else {
		t.Logf("first paint after %.0f ms", paint)
	}

	// Find it, and what drops the others.
	d.until("the loudest source is heavy", fmt.Sprintf("document.querySelector('tr.heavy')?.textContent.includes(%q) ?? false", loud))
	d.shows("live", "Live")
	d.until("the chart is drawn", "document.querySelector('#chart canvas') !== null")
	d.until("a list has matched, and another never", `(t => /scanners.*[1-9]/.test(t) && /quiet.*has never matched/.test(t))([...document.querySelectorAll('#p-lists tr')].map(r => r.textContent).join(';'))`)
	d.shows("p-talkers", most)
	d.click(explainLoud)
	d.shows("answer", "from "+loud+": pass")
	d.set("#q", listed)
	d.click("#explain button")
	d.shows("answer", "scanners.txt:1")

	// Block it, and verify.
	d.click(blockLoud)
	d.shows("result", loud+" is blocked for 60 min, in list manual")
	d.click(explainLoud)
	d.shows("answer", "from "+loud+": drop")
	d.shows("answer", "weir console")
	d.shows("p-entries", loud)
	d.until("its packets are dropped", fmt.Sprintf(`[...document.querySelectorAll("#p-talkers tr")].some(r => r.textContent.includes(%q) && r.textContent.includes("blocked (manual)"))`, loud))
	d.looksRight("", 360, 768, 1280, 1440, 2560)
	// Text has the contrast that WCAG wants of it, and controls have names.
	for _, c := range []string{"--ink", "--quiet", "--passed", "--dropped", "--accent", "--warn"} {
		if ratio := eval[float64](d, fmt.Sprintf(contrast, c)); ratio < 4.5 {
			t.Errorf("%s has a contrast of %.1f", c, ratio)
		}
	}
	if unnamed := eval[string](d, `[...document.querySelectorAll("input:not([type=hidden]), select, button, a")]
		.filter(e => !e.labels?.length && !e.getAttribute("aria-label") && !e.textContent.trim()).map(e => e.outerHTML).join("\n")`); unnamed != "" {
		t.Errorf("without a name:\n%s", unnamed)
	}

	// Events, only while they are shown.
	d.set("#match", loud)
	d.click("#events button")
	d.until("events are live", "document.querySelectorAll('#event-rows tr').length > 5")
	d.shows("event-rows", loud)
	d.click(`button[name="stop"]`)
	d.shows("p-events", "otherwise they cost nothing")

	// Download them, until the session ends.
	downloads := t.TempDir()
	if _, err := chromedp.CallBrowser(d.tab, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{Behavior: browser.SetDownloadBehaviorBehaviorAllow, DownloadPath: downloads}); err != nil {
		t.Fatal(err)
	}
	d.click("#capture")
	d.downloads(downloads)

	// Undo it.
	d.click("#undo")
	d.shows("result", "Undone: "+loud+" is no longer blocked")
	d.click(explainLoud)
	d.shows("answer", "from "+loud+": pass")
	d.shows("p-entries", "There are none.")
	d.shows("p-audit", "unblock")

	// A list drops nothing while it is on trial.
	d.click("#l-scanners")
	d.click("#enforce")
	d.shows("result", "List scanners is put on trial")
	d.click("#sure")
	d.shows("result", "list scanners is on trial, and drops nothing")
	d.set("#q", listed)
	d.click("#explain button")
	d.shows("answer", "since list scanners is on trial")
	d.shows("p-last", "enforce off scanners")
	d.click("#revert")
	d.shows("result", "Undone: From now on list scanners is enforced")
	d.click("#explain button")
	d.shows("answer", "from "+listed+": drop")

	d.quiet()
	d.click("#end")
	d.until("the session has ended", "document.body?.textContent.includes('The session has ended') ?? false")
	d.downloaded(downloads, loud)
}

// hold keeps the first answer back whose URL contains a text, until release.
func (d *desk) hold(text string) (held <-chan struct{}, release func()) {
	d.t.Helper()
	ctx, end := context.WithCancel(d.tab)
	seen, released, first := make(chan struct{}), make(chan struct{}), true
	paused := chromedp.Events(ctx, fetch.RequestPaused)
	go func() {
		for e, err := range paused {
			if err != nil {
				return
			}
			waits := first
			if waits {
				first = false
				close(seen)
			}
			go func() {
				if waits {
					<-released
				}
				// The page may have given the request up.
				_, _ = chromedp.Call(d.tab, fetch.ContinueResponse, fetch.ContinueResponseParams{RequestID: e.RequestID})
			}()
		}
	}()
	pattern := fetch.RequestPattern{URLPattern: "*" + text + "*", RequestStage: fetch.RequestStageResponse}
	if _, err := chromedp.Call(d.tab, fetch.Enable, fetch.EnableParams{Patterns: []*fetch.RequestPattern{&pattern}}); err != nil {
		d.t.Fatal(err)
	}
	return seen, func() {
		close(released)
		time.Sleep(500 * time.Millisecond) // the answer would be shown
		end()
	}
}

// An answer that comes late does not replace what was asked for after it: the list that was
// opened stays open, and the explanation is of the latest question.
func TestLateAnswers(t *testing.T) {
	d := setUp(t)
	d.open(false)
	for _, c := range []struct{ of, former, latest, shows string }{
		{"/lists?", "", "#l-scanners", `document.querySelector("#p-lists #close") !== null`},
		{"/explain?", "#explain button", explainLoud, fmt.Sprintf(`document.getElementById("answer").textContent.includes("from %s: pass")`, loud)},
	} {
		held, release := d.hold(c.of)
		if c.former != "" {
			d.set("#q", listed)
			d.click(c.former)
		}
		select {
		case <-held:
		case <-time.After(wait.Patience):
			t.Fatal("nothing was asked for")
		}
		d.click(c.latest)
		d.until(c.latest+" is answered", c.shows)
		release()
		if !eval[bool](d, c.shows) {
			t.Errorf("%s: replaced by the answer to a former question", c.latest)
		}
	}
	d.quiet()
}

// looksRight looks at the page in both themes and at these widths.
func (d *desk) looksRight(name string, widths ...int64) {
	d.t.Helper()
	for _, theme := range []string{"light", "dark"} {
		if _, err := chromedp.Call(d.tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}},
		}); err != nil {
			d.t.Fatal(err)
		}
		for _, width := range widths {
			d.do(chromedp.EmulateViewport(width, 900))
			d.until(fmt.Sprintf("nothing is cut off at %d px", width), "document.documentElement.scrollWidth <= innerWidth")
			if overlap := eval[string](d, overlaps); overlap != "" {
				d.t.Errorf("at %d px these overlap: %s", width, overlap)
			}
			if width == 768 || width == 1440 {
				d.until(fmt.Sprintf("tables are whole at %d px", width), `[...document.querySelectorAll("#p-talkers .scroll, #p-audit .scroll")].every(e => e.scrollWidth <= e.clientWidth)`)
			}
			d.until("the theme is "+theme, fmt.Sprintf("(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] < 128) === %t", theme == "dark"))
			d.picture(fmt.Sprintf("%s%s-%d", name, theme, width))
		}
	}
}

// overlaps names two panels, or two of the elements that a user works with, of which one covers
// a part of the other, as far as they are in sight: a table may be scrolled within its panel.
const overlaps = `(() => {
	const shown = e => {
		const r = e.getBoundingClientRect(), by = e.closest(".scroll")?.getBoundingClientRect() ?? r;
		return {left: Math.max(r.left, by.left), right: Math.min(r.right, by.right), top: Math.max(r.top, by.top), bottom: Math.min(r.bottom, by.bottom)};
	};
	for (const all of ["main section", "header :is(h1, p, a, button), main :is(a, button, input, select)"]) {
		const seen = [...document.querySelectorAll(all)].filter(e => e.checkVisibility() && !e.closest(".events")).map(e => [e, shown(e)])
			.filter(([_, r]) => r.left < r.right && r.top < r.bottom);
		for (const [i, [a, x]] of seen.entries()) for (const [b, y] of seen.slice(i + 1))
			if (!a.contains(b) && x.left + 1 < y.right && y.left + 1 < x.right && x.top + 1 < y.bottom && y.top + 1 < x.bottom) return a.outerHTML.slice(0, 200) + " and " + b.outerHTML.slice(0, 200);
	}
	return "";
})()`

// contrast is the contrast of a colour with that of cards.
const contrast = `(() => {
	const style = getComputedStyle(document.documentElement), canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
	const light = (name) => {
		canvas.fillStyle = style.getPropertyValue(name).trim();
		canvas.fillRect(0, 0, 1, 1);
		const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(v => (v /= 255, v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
		return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
	};
	const [a, b] = [light(%q), light("--card")];
	return Math.max(a, b) / Math.min(a, b);
})()`

// downloads waits until packets are in a file of the browser's.
func (d *desk) downloads(dir string) {
	d.t.Helper()
	for deadline := wait.Deadline(); ; time.Sleep(20 * time.Millisecond) {
		files, _ := os.ReadDir(dir)
		for _, f := range files {
			if info, err := f.Info(); err == nil && info.Size() > 1000 { // the head has fewer bytes
				return
			}
		}
		if time.Now().After(deadline) {
			d.t.Fatal("no packet is downloaded")
		}
	}
}

// downloaded waits for a capture file that is whole, and whose packets are from a source.
func (d *desk) downloaded(dir, from string) {
	d.t.Helper()
	for deadline := wait.Deadline(); ; time.Sleep(100 * time.Millisecond) {
		files, _ := filepath.Glob(filepath.Join(dir, "weir-*.pcapng"))
		if len(files) == 1 { // until it is whole, it has another name
			n, err := packetsOf(files[0], from)
			if err != nil || n == 0 {
				d.t.Errorf("%d packets: %v", n, err)
			}
			return
		}
		if time.Now().After(deadline) {
			d.t.Fatal("nothing is downloaded")
		}
	}
}

// packetsOf returns the number of packets in a capture, which must be from a source.
func packetsOf(file, from string) (n int, err error) {
	r, err := capture.Open(file)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	for ; ; n++ {
		p, err := r.Next()
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if parsed, _ := packet.Parse(p.Data); parsed.Src.String() != from {
			return n, fmt.Errorf("a packet from %v", parsed.Src)
		}
	}
}

// tabTo moves the focus with the Tab key alone.
func (d *desk) tabTo(selector string) {
	d.t.Helper()
	for range 300 {
		d.do(chromedp.KeyEvent(kb.Tab))
		if eval[bool](d, fmt.Sprintf("document.activeElement.matches(%q)", selector)) {
			return
		}
	}
	d.t.Fatalf("Tab does not reach %s", selector)
}

// The same by keyboard alone. The focus stays where it is while panels change.
func TestKeyboard(t *testing.T) {
	d := setUp(t)
	d.open(false)
	tabTo := d.tabTo
	tabTo(".skip")
	d.do(chromedp.KeyEvent(kb.Enter))
	tabTo("#q")
	d.do(chromedp.KeyEvent(loud + kb.Enter))
	d.shows("answer", "from "+loud+": pass")
	tabTo("#entry")
	d.do(chromedp.KeyEvent(second))
	tabTo("#reason")
	d.do(chromedp.KeyEvent("flood"))
	tabTo(`button[name="action"][value="block"]`)
	d.do(chromedp.KeyEvent(kb.Enter))
	d.shows("result", second+" is blocked for 60 min")

	d.until("the loudest source is there", fmt.Sprintf("document.querySelector(%q) !== null", blockLoud))
	tabTo(blockLoud)
	before := eval[string](d, "document.getElementById('figures').dataset.time")
	d.until("the panels have changed", fmt.Sprintf("document.getElementById('figures').dataset.time > %q", before))
	if !eval[bool](d, fmt.Sprintf("document.activeElement.matches(%q)", blockLoud)) {
		t.Error("the focus is lost when the panels change")
	}
	d.do(chromedp.KeyEvent(kb.Enter))
	d.shows("result", loud+" is blocked for 60 min")
	tabTo("#undo")
	d.do(chromedp.KeyEvent(kb.Enter))
	d.shows("result", "Undone: "+loud)
	d.shows("p-audit", "unblock")

	// A link explains, an entry is removed.
	tabTo(explainLoud)
	d.do(chromedp.KeyEvent(kb.Enter))
	d.shows("answer", "from "+loud+": pass")
	tabTo(`button[name="remove"]`)
	d.do(chromedp.KeyEvent(kb.Enter))
	d.shows("result", second+" is no longer blocked")

	// Events, with a filter; tables that scroll have the focus; pause; the end.
	tabTo("#match")
	d.do(chromedp.KeyEvent(listed + kb.Enter))
	d.until("events are live", "document.querySelectorAll('#event-rows tr').length > 5")
	d.shows("event-rows", listed)
	tabTo("#capture")
	tabTo(`[role="region"][aria-label="Events"]`)
	d.do(chromedp.KeyEvent(kb.ArrowDown))
	tabTo("#stop")
	d.do(chromedp.KeyEvent(kb.Enter))
	d.shows("p-events", "otherwise they cost nothing")
	tabTo("#pause")
	d.do(chromedp.KeyEvent(kb.Enter))
	d.shows("live", "Paused")
	d.do(chromedp.KeyEvent(kb.Enter))
	d.shows("live", "Live")

	// The plan is a page beside it. Moving a slider changes the plan's options.
	tabTo(`a[href$="/plan"]`)
	d.do(chromedp.KeyEvent(kb.Enter))
	d.visible("#plan-form")
	tabTo("#plan-bits")
	d.do(chromedp.KeyEvent(kb.ArrowRight))
	d.shows("p-plan", "--bits-per-entry 17")
	d.shows("at-bits", "17")
	d.do(chromedp.KeyEvent(kb.Tab))
	d.until("memory has the focus", "document.activeElement.id === 'plan-memory'")
	d.do(chromedp.KeyEvent(kb.End))
	d.shows("p-plan", " --memory 33554432KiB")
	d.until("memory is the given option", "document.getElementById('given-memory').checked")

	d.quiet()
	tabTo("#end")
	d.do(chromedp.KeyEvent(kb.Enter))
	d.until("the session has ended", "document.body?.textContent.includes('The session has ended') ?? false")
}

// Without scripts the page is read, and changed.
func TestWithoutScripts(t *testing.T) {
	d := setUp(t)
	if _, err := chromedp.Call(d.tab, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		t.Fatal(err)
	}
	until := func(what string, steps func() string) {
		t.Helper()
		for deadline := wait.Deadline(); ; time.Sleep(200 * time.Millisecond) {
			text := steps()
			if strings.Contains(text, what) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("no %q in\n%s", what, text)
			}
		}
	}
	text := func() string { // "" while another page is loaded
		s, _ := chromedp.Run(d.tab, chromedp.Evaluate[string]("document.body.innerText"))
		return s
	}
	opened, err := d.daemon.API().OpenConsole(t.Context(), api.ConsoleRequest{})
	if err != nil {
		t.Fatal(err)
	}
	d.do(chromedp.Navigate(opened.URL), chromedp.WaitVisible(chromedp.CSS("#main")))
	until(loud, func() string { d.do(chromedp.Reload(), chromedp.WaitVisible(chromedp.CSS("#main"))); return text() })
	d.do(chromedp.SendKeys(chromedp.CSS("#entry"), loud), chromedp.Click(chromedp.CSS(`#change button[value="block"]`)))
	until(loud+" is blocked for 60 min", text)
	d.do(chromedp.SendKeys(chromedp.CSS("#q"), loud+kb.Enter))
	until("from "+loud+": drop", text)
	d.do(chromedp.Click(chromedp.CSS("#undo")))
	until("Undone: "+loud, text)
}
