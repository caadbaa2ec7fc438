package browser

import (
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"weir/tests/long"
	"weir/tests/wait"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// Neither the page nor the daemon grows while events are shown. WEIR_EVENTS=1h says for how
// long; with WEIR_LONG=1 it is 20 s.
func TestEventsDoNotGrow(t *testing.T) {
	during := 20 * time.Second
	if text := os.Getenv("WEIR_EVENTS"); text != "" {
		var err error
		if during, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	} else if !long.Enabled {
		t.Skip("needs WEIR_LONG=1, or WEIR_EVENTS with a time")
	}
	d := setUpFor(t, during+3*wait.Patience)
	d.open(false)
	d.click("#show")
	d.until("the table of events is full", "document.querySelectorAll('#event-rows tr').length >= 200")

	// What is in use after a collection: the lower half of the samples of each third, since
	// others are taken in the middle of something.
	const samples = 30
	var page, daemon, nodes []float64
	for range samples {
		time.Sleep(during / samples)
		d.collect()
		used, err := chromedp.Call(d.tab, cdpruntime.GetHeapUsage, cdp.Empty{})
		if err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		page, daemon = append(page, used.UsedSize), append(daemon, float64(m.HeapAlloc))
		nodes = append(nodes, eval[float64](d, "document.getElementsByTagName('*').length"))
	}
	if rows := eval[int](d, "document.querySelectorAll('#event-rows tr').length"); rows < 200 || rows > 220 {
		t.Errorf("%d rows", rows)
	}
	d.shows("live", "Live")
	for _, c := range []struct {
		name  string
		all   []float64
		slack float64
	}{{"heap of the page", page, 1 << 20}, {"heap of the daemon and this test", daemon, 4 << 20}, {"elements of the page", nodes, 500}} {
		first, last := least(c.all[samples/3:2*samples/3]), least(c.all[2*samples/3:])
		t.Logf("%s: %.0f after a third to two of %v, %.0f in the last third", c.name, first, during, last)
		if last > 1.1*first+c.slack {
			t.Errorf("the %s grows: %.0f", c.name, c.all)
		}
	}
	d.quiet()
}

// least returns the mean of the lower half.
func least(all []float64) (mean float64) {
	all = slices.Sorted(slices.Values(all))
	all = all[:(len(all)+1)/2]
	for _, v := range all {
		mean += v / float64(len(all))
	}
	return mean
}

func (d *desk) collect() {
	d.t.Helper()
	if _, err := chromedp.Call(d.tab, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
		d.t.Fatal(err)
	}
}
