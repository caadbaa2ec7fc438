package notify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"weir/control/endpoint"
)

// Format is the form of messages to a syslog server.
type Format string

// The forms of messages.
const (
	RFC5424 Format = "rfc5424" // structured data, and the text
	CEF     Format = "cef"     // the Common Event Format of ArcSight, in a message of RFC 5424
)

// UnmarshalText sets the form by its name.
func (f *Format) UnmarshalText(text []byte) error {
	if Format(text) != RFC5424 && Format(text) != CEF {
		return fmt.Errorf("unknown format %q: want %s or %s", text, RFC5424, CEF)
	}
	*f = Format(text)
	return nil
}

// pair is a named value.
type pair struct{ name, value string }

// pairs returns what an event is about, but for its text, in a fixed order. Numbers
// that are zero are left out, as are empty texts.
func (e *Event) pairs() (all []pair) {
	add := func(name string, value any) {
		if text := fmt.Sprint(value); text != "" && text != "0" && text != "false" {
			all = append(all, pair{name, text})
		}
	}
	add("id", e.ID)
	add("kind", e.Kind)
	add("state", e.State)
	add("more", e.More)
	add("missed", e.Missed)
	if f := e.Flow; f != nil {
		add("flow", f.Flow)
		add("tracker", f.Tracker)
		add("action", f.Action)
		add("packets", f.Packets)
		add("bytes", f.Bytes)
		add("interval", f.Interval)
		add("unmet", f.Unmet)
		add("would_cut_off", f.CutsOff)
	}
	if f := e.Feed; f != nil {
		add("list", f.List)
		add("source", f.Source)
		add("failure", f.Failure)
		add("error", f.Error)
		add("entries", f.Entries)
	}
	if i := e.Interface; i != nil {
		add("interface", i.Interface)
		add("netns", i.Netns)
		add("condition", i.State)
		add("problem", i.Problem)
	}
	if c := e.Change; c != nil {
		add("change", c.Change)
		add("list", c.List)
		add("error", c.Error)
		add("entries", c.Entries)
		add("user", c.User)
		add("origin", c.Source)
	}
	if d := e.Drops; d != nil {
		add("rate", d.Rate)
		add("average", d.Average)
		add("threshold", d.Threshold)
		add("monitor", d.Monitor)
		add("arriving", d.Arriving)
	}
	return all
}

// enterprise is the private enterprise number for documentation (RFC 5612): weir has
// none of its own.
const enterprise = "32473"

// syslog returns an event as a message of RFC 5424.
func (e Event) syslog(form Format, version string) string {
	e = e.bounded()
	const daemon = 3 // the facility
	severity := map[string]int{Error: 3, Warning: 4, Info: 6}[e.Severity]
	var b strings.Builder
	fmt.Fprintf(&b, "<%d>1 %s %s weir %d %s ", daemon<<3|severity, e.Time.UTC().Format("2006-01-02T15:04:05.000000Z07:00"),
		name(e.Host, 255), os.Getpid(), name(string(e.Kind), 32))
	if form == CEF {
		b.WriteString("- " + e.cef(version))
		return b.String()
	}
	b.WriteString("[weir@" + enterprise)
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, `]`, `\]`)
	for _, p := range e.pairs() {
		fmt.Fprintf(&b, ` %s="%s"`, p.name, escape.Replace(line(p.value)))
	}
	b.WriteString("] " + line(e.Text))
	return b.String()
}

// cefKeys are the names of CEF for some of the pairs. Others are custom strings.
var cefKeys = map[string]string{
	"id": "externalId", "packets": "cnt", "bytes": "in", "action": "act", "user": "suser", "interface": "deviceInboundInterface",
}

// cef returns an event in the Common Event Format, version 0.
func (e *Event) cef(version string) string {
	severity := map[string]int{Error: 8, Warning: 5, Info: 2}[e.Severity]
	header := strings.NewReplacer(`\`, `\\`, `|`, `\|`)
	value := strings.NewReplacer(`\`, `\\`, `=`, `\=`)
	signature := string(e.Kind)
	if e.State != "" {
		signature += "-" + string(e.State)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "CEF:0|weir|weir|%s|%s|%s|%d|rt=%d dvchost=%s", header.Replace(version), header.Replace(signature),
		header.Replace(line(e.Text)), severity, e.Time.UnixMilli(), value.Replace(line(e.Host)))
	custom := 0
	for _, p := range e.pairs() {
		text := value.Replace(line(p.value))
		switch key := cefKeys[p.name]; {
		case key != "":
			fmt.Fprintf(&b, " %s=%s", key, text)
		case p.name == "flow" && e.Flow.Tracker == "src":
			fmt.Fprintf(&b, " src=%s", text)
		case p.name == "flow" && e.Flow.Tracker == "dst":
			fmt.Fprintf(&b, " dst=%s", strings.TrimPrefix(text, "> "))
		case p.name != "kind" && p.name != "state" && custom < 6: // CEF has no more of them
			custom++
			fmt.Fprintf(&b, " cs%[1]d=%[2]s cs%[1]dLabel=%[3]s", custom, text, p.name)
		}
	}
	return b.String()
}

// name returns a name for the header of a message: printable ASCII without spaces.
func name(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return -1
		}
		return r
	}, s)
	if s == "" {
		return "-"
	}
	return s[:min(len(s), most)]
}

// log sends an event to a syslog server. Over TCP and TLS it has arrived when the
// server has closed the connection in turn, which it does when it has read all. UDP
// confirms nothing.
func (r *receiver) log(ctx context.Context, e Event) (answer string, err error) {
	c, err := r.Syslog.Dial(ctx, r.TLS)
	if err != nil {
		return "", explain(ctx, err)
	}
	defer c.Close()
	if server, ok := endpoint.Server(c); ok {
		r.mu.Lock()
		r.servers = []netip.Addr{server}
		r.mu.Unlock()
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })()
	text := e.syslog(r.Format, strings.TrimPrefix(r.n.agent, "weir/"))
	half, stream := c.(interface{ CloseWrite() error })
	if stream { // octet counting, of RFC 5425 and 6587
		text = strconv.Itoa(len(text)) + " " + text
	}
	if _, err = io.WriteString(c, text); err != nil {
		return "", explain(ctx, err)
	}
	if !stream {
		return "sent, by UDP, which does not confirm it", nil
	}
	if err = half.CloseWrite(); err == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(c, maxAnswer))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return "", explain(ctx, err)
	}
	return "", nil
}
