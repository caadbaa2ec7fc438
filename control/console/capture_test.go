package console

import (
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir/control/capture"
	"weir/control/observe/events"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader/netif"
)

// dropped is n packets that were dropped, from two sources by turns.
func dropped(n int) (all []events.Event) {
	for i := range n {
		t := key.Tuple{Src: netip.AddrFrom4([4]byte{198, 51, 100, byte(i % 2)}), Dst: netip.MustParseAddr("192.0.2.1"), Proto: 17, HasPorts: true, SrcPort: 1, DstPort: 53}
		all = append(all, events.Event{Time: time.Unix(1700000000, int64(i)), Target: netif.Target{Iface: "eth0"}, Reason: verdict.Blocked, List: "drop", Tuple: t, Length: 1000, OneIn: 2, Dropped: true, Frame: packet.Frame(t)})
	}
	return all
}

// A session to read downloads the packets that it has filtered for, as weir capture
// writes them, up to a number.
func TestCapture(t *testing.T) {
	s := start(t)
	b := s.open(true)
	for _, c := range []struct {
		query        string
		happen, want int
		source       string
	}{
		{"?seconds=5&reason=blocked", 3, 3, ""},
		{"?seconds=5&match=198.51.100.1", 10, 5, "198.51.100.1"},
		{"?seconds=60", maxCaptured + 10, maxCaptured, ""},
	} {
		s.daemon.happens = append([]events.Event{{Lost: 7}}, dropped(c.happen)...)
		q, _ := http.NewRequest(http.MethodGet, b.base+"events/capture"+c.query, nil)
		status, text, h := b.do(q)
		if d := h.Get("Content-Disposition"); status != http.StatusOK || !strings.HasPrefix(d, `attachment; filename="weir-2`) || !strings.HasSuffix(d, `.pcapng"`) {
			t.Fatalf("%s: status %d, %v", c.query, status, h)
		}
		if w := s.daemon.wanted; !w.Frames || (len(w.Reasons) == 1) != strings.Contains(c.query, "reason") {
			t.Errorf("%s: wants %+v", c.query, w)
		}
		file, err := capture.NewReader("download", strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for {
			p, err := file.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			n++
			parsed, _ := packet.Parse(p.Data)
			if p.Length != 1000 || p.Time.Unix() != 1700000000 || c.source != "" && parsed.Src.String() != c.source {
				t.Fatalf("%s: %+v", c.query, p)
			}
		}
		if n != c.want || !strings.Contains(text, "blocked, list drop, 1 of 2") {
			t.Errorf("%s: %d packets, want %d", c.query, n, c.want)
		}
	}
	for _, query := range []string{"", "?seconds=3600", "?seconds=x", "?seconds=5&reason=none"} {
		if status, _ := b.get(b.base + "events/capture" + query); status != http.StatusBadRequest {
			t.Errorf("%q: status %d", query, status)
		}
	}
}

// Downloads are live pages, of which a session has some, and end with it.
func TestCaptureEnds(t *testing.T) {
	s := start(t)
	b := s.open(true)
	var all []*http.Response
	for i := range maxStreams + 1 {
		r, err := b.client.Get(b.base + "events/capture?seconds=60")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if want := map[bool]int{true: http.StatusOK, false: http.StatusTooManyRequests}[i < maxStreams]; r.StatusCode != want {
			t.Errorf("download %d: status %d", i, r.StatusCode)
		}
		all = append(all, r)
	}
	s.End()
	for _, r := range all {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
	}
}
