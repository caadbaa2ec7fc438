package notify

import (
	"bufio"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/control/endpoint"
	"weir/tests/wait"
)

// What others have chosen, in texts and names, ends neither a field nor the message.
func TestSyslogMessages(t *testing.T) {
	e := Event{
		ID: "ID", Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), Host: "a b\n", Kind: Refused, Severity: Warning,
		Text:   "two\nlines|x",
		Change: &ChangeEvent{Change: "block", List: `l]"\`, Error: "a=b\n|c", User: "root"},
	}
	got := e.syslog(RFC5424, "1.0")
	head, rest, _ := strings.Cut(got, " weir ")
	if head != "<28>1 2026-01-02T03:04:05.000006Z ab" {
		t.Errorf("begins with %q", head)
	}
	_, rest, _ = strings.Cut(rest, " ") // PID
	if want := `refused [weir@32473 id="ID" kind="refused" change="block" list="l\]\"\\" error="a=b |c" user="root"] two lines|x`; rest != want {
		t.Errorf("%s\nwant %s", rest, want)
	}
	_, cef, _ := strings.Cut(e.syslog(CEF, "1|0"), " - ")
	if want := `CEF:0|weir|weir|1\|0|refused|two lines\|x|5|rt=1767323045000 dvchost=a b `; !strings.HasPrefix(cef, want) {
		t.Errorf("%s\nwant %s", cef, want)
	}
	if want := ` externalId=ID cs1=block cs1Label=change cs2=l]"\\ cs2Label=list cs3=a\=b |c cs3Label=error suser=root`; !strings.HasSuffix(cef, want) {
		t.Errorf("%s\nwant the end %s", cef, want)
	}
	if strings.ContainsAny(cef+got, "\n") {
		t.Errorf("more than a line: %q %q", got, cef)
	}
}

// Each figure of an event has its name.
func TestSyslogPairs(t *testing.T) {
	for want, e := range map[string]Event{
		`kind="heavy" flow="192.0.2.1" tracker="src" action="block" packets="5" bytes="300" interval="2" unmet="true" would_cut_off="the gateway"`: {
			Kind: "heavy", Flow: &FlowEvent{Flow: "192.0.2.1", Tracker: "src", Action: "block", Packets: 5, Bytes: 300, Interval: 2, Unmet: true, CutsOff: "the gateway"}},
		`kind="surge" more="3" missed="4" rate="5" average="6" threshold="7" monitor="true" arriving="true"`: {
			Kind: "surge", More: 3, Missed: 4, Drops: &DropsEvent{Rate: 5, Average: 6, Threshold: 7, Monitor: true, Arriving: true}},
	} {
		if got := e.syslog(RFC5424, "1.0"); !strings.Contains(got, "[weir@32473 "+want+"]") {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// As many events pass at once as may, then one at each interval, which says how many did not.
func TestThrottle(t *testing.T) {
	now := time.Now()
	limit := Throttle{Most: 2, Refill: time.Minute}
	for i, c := range []struct {
		after time.Duration
		more  int
		ok    bool
	}{{0, 0, true}, {0, 0, true}, {0, 0, false}, {59 * time.Second, 0, false}, {time.Second, 2, true}, {0, 0, false}, {time.Hour, 1, true}, {0, 0, true}, {0, 0, false}} {
		now = now.Add(c.after)
		if more, ok := limit.Pass(now); more != c.more || ok != c.ok {
			t.Errorf("event %d: %d, %t, want %d, %t", i, more, ok, c.more, c.ok)
		}
	}
}

// A message over TCP is delivered when the server has closed the connection, and is
// repeated otherwise.
func TestSyslogStream(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	n, _ := newNotifier(t, Target{Name: "a", Syslog: endpoint.URL("tcp://" + l.Addr().String()), Format: RFC5424})
	n.Send(Event{Kind: Surge, Severity: Info, Text: "text"})
	for round := range 2 {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			c.(*net.TCPConn).SetLinger(0)
			c.Close() // it has read nothing
			continue
		}
		c.SetDeadline(wait.Deadline())
		r := bufio.NewReader(c)
		text, err := r.ReadString(' ')
		length, bad := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || bad != nil {
			t.Fatal(text, err, bad)
		}
		message, err := io.ReadAll(r)
		if err != nil || len(message) != length || !strings.HasSuffix(string(message), "] text") {
			t.Errorf("%d: %q, %v", length, message, err)
		}
		if c := n.Counts()[0]; c.Delivered != 0 {
			t.Errorf("delivered before the server has closed: %+v", c)
		}
		c.Close()
	}
	wait.For(t, "the delivery", func() bool { return n.Counts()[0].Delivered == 1 })
}
