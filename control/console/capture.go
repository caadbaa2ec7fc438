package console

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"weir/control/capture"
)

// captureTimes are for how many seconds events may be downloaded.
var captureTimes = []int{5, 15, 60}

// maxCaptured is the number of packets in a download: some 4 MB.
const maxCaptured = 10_000

// timed writes with a deadline.
type timed struct {
	http.ResponseWriter
	*http.ResponseController
}

func (w timed) Write(b []byte) (int, error) {
	_ = w.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails in tests only
	return w.ResponseWriter.Write(b)
}

// capture answers with a capture file of the events that a page wants, as they happen.
func (c *Console) capture(w http.ResponseWriter, q *http.Request, one *session) {
	asked, want := readWant(q)
	seconds, err := strconv.Atoi(q.URL.Query().Get("seconds"))
	switch {
	case asked.wrong != "":
	case err != nil || !slices.Contains(captureTimes, seconds):
		asked.wrong = fmt.Sprintf("seconds=%.20q: want one of %v", q.URL.Query().Get("seconds"), captureTimes)
	}
	if asked.wrong != "" {
		sorry(w, q, http.StatusBadRequest, "Not understood", asked.wrong)
		return
	}
	if !take(w, q, one) {
		return
	}
	defer one.done()
	want.Frames = true
	all, end := c.daemon.Events(want)
	defer end()
	h := w.Header()
	h.Set("Content-Type", "application/x-pcapng")
	h.Set("Content-Disposition", `attachment; filename="weir-`+c.sessions.now().UTC().Format("20060102-150405")+`.pcapng"`)
	out := timed{w, http.NewResponseController(w)}
	// The end of the response is written after this.
	defer func() { _ = out.SetWriteDeadline(time.Now().Add(writeTimeout)) }()
	file, err := capture.NewWriter(out, "weir "+c.version)
	if err != nil || out.Flush() != nil {
		return
	}
	over, expired := time.After(time.Duration(seconds)*time.Second), one.lasts(c.sessions.now())
	for written := 0; written < maxCaptured; {
		select {
		case event, ok := <-all:
			if !ok {
				return
			}
			e := event.API()
			if e.Lost > 0 || !asked.matches(&e) {
				continue
			}
			if file.Write(capture.Of(&e)) != nil || len(all) == 0 && out.Flush() != nil {
				return
			}
			written++
		case <-over:
			return
		case <-expired:
			return
		case <-one.ended:
			return
		case <-one.stopped:
			return
		case <-q.Context().Done():
			return
		}
	}
}
