package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"weir/control/endpoint"
	"weir/control/quantity"
	"weir/tests/must"
	"weir/tests/wait"
)

const secret = "0123456789abcdef0123456789abcdef"

// logged is a log that a test reads.
type logged struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.String()
}

func newNotifier(t *testing.T, targets ...Target) (*Notifier, *logged) {
	t.Helper()
	log := &logged{}
	n := New("1.2.3", slog.New(slog.NewTextHandler(log, nil)))
	for i := range targets {
		if targets[i].Timeout == 0 {
			targets[i].SetDefaults()
		}
	}
	n.Configure(targets)
	t.Cleanup(func() { n.Close(0) })
	return n, log
}

func (n *Notifier) only() Count { return n.Counts()[0] }

// received is the part of an event that tests look at.
type received struct {
	ID, Kind, Text string
	Missed         int
}

// answers makes a webhook's answer to a request.
type answers func(body []byte, h http.Header) (status int, header http.Header)

// RoundTrip is an exchange with a server, in a bubble of synctest.
func (a answers) RoundTrip(q *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return nil, err
	}
	status, header := a(body, q.Header)
	if status == 0 {
		return nil, errors.New("connection refused")
	}
	return &http.Response{StatusCode: status, Status: fmt.Sprint(status, " ", http.StatusText(status)), Header: header, Body: io.NopCloser(strings.NewReader("")), Request: q}, nil
}

// A request is signed over its time and its body, in the way that the page documents,
// and has the configured headers.
func TestSignature(t *testing.T) {
	var got atomicRequest
	s := httptest.NewServer(&got)
	defer s.Close()
	file := filepath.Join(t.TempDir(), "secret")
	must.Write(t, file, secret+"\n")
	for name, target := range map[string]Target{
		"inline": {Name: "a", URL: URL(s.URL), Secret: secret, Headers: map[string]string{"Authorization": "Bearer x"}},
		"file":   {Name: "a", URL: URL(s.URL), SecretFile: quantity.Path(file), Headers: map[string]string{"Authorization": "Bearer x"}},
	} {
		n, log := newNotifier(t, target)
		n.Send(Event{Kind: Feed, Text: "x"})
		wait.For(t, "an event", func() bool { return n.only().Delivered == 1 })
		h, body := got.take()
		fields := strings.Split(h.Get("Weir-Signature"), ",")
		if len(fields) != 2 || !strings.HasPrefix(fields[0], "t=") || !strings.HasPrefix(fields[1], "v1=") {
			t.Fatalf("%s: signature %q", name, h.Get("Weir-Signature"))
		}
		seconds, _ := strconv.ParseInt(fields[0][2:], 10, 64)
		mac := hmac.New(sha256.New, []byte(secret))
		fmt.Fprintf(mac, "%d.%s", seconds, body)
		if age := time.Since(time.Unix(seconds, 0)); fields[1][3:] != hex.EncodeToString(mac.Sum(nil)) || age < 0 || age > time.Minute {
			t.Errorf("%s: signature %q of %s", name, fields, body)
		}
		if h.Get("Authorization") != "Bearer x" || h.Get("Content-Type") != "application/json" || h.Get("User-Agent") != "weir/1.2.3" {
			t.Errorf("%s: %v", name, h)
		}
		if strings.Contains(log.text(), secret) {
			t.Error("the log has the secret")
		}
		if got := n.Servers(); len(got["a"]) != 1 || got["a"][0].String() != "127.0.0.1" {
			t.Errorf("servers: %v", got)
		}
	}
}

// atomicRequest is a server that keeps the last request.
type atomicRequest struct {
	mu     sync.Mutex
	header http.Header
	body   []byte
}

func (a *atomicRequest) ServeHTTP(_ http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.header, a.body = q.Header, body
}

func (a *atomicRequest) take() (http.Header, []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.header, a.body
}

// What fails is repeated with the same id and a new signature, at growing and random
// intervals, in order, until it is an hour old; what cannot succeed is not repeated.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []received
		var at []time.Duration
		var signatures []string
		var mu sync.Mutex // guards these
		began, status := time.Now(), 503
		answer := func(with int) {
			mu.Lock()
			defer mu.Unlock()
			status, got = with, nil
		}
		n, log := newNotifier(t)
		n.transport = answers(func(body []byte, h http.Header) (int, http.Header) {
			var e received
			if err := json.Unmarshal(body, &e); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			got, at, signatures = append(got, e), append(at, time.Since(began)), append(signatures, h.Get(SignatureHeader))
			return status, http.Header{}
		})
		target := Target{Name: "pager", URL: "http://192.0.2.1/T0K3N", Secret: secret}
		target.SetDefaults()
		n.Configure([]Target{target})
		for i := range 3 {
			n.Send(Event{Kind: Feed, Text: strconv.Itoa(i)})
		}
		time.Sleep(10*time.Minute + time.Millisecond)
		synctest.Wait()
		if len(got) < 10 || len(got) > 30 {
			t.Fatalf("%d attempts in ten minutes", len(got))
		}
		for i := range got {
			if got[i].ID != got[0].ID || got[i].Text != "0" || i > 3 && signatures[i] == signatures[0] {
				t.Errorf("attempt %d: %+v, %s", i, got[i], signatures[i])
			}
			wait := min(firstRetry<<max(i-1, 0), maxRetry)
			if i > 0 && (at[i]-at[i-1] < wait/2 || at[i]-at[i-1] > wait) {
				t.Errorf("attempt %d after %v, want %v to %v", i, at[i]-at[i-1], wait/2, wait)
			}
		}
		if c := n.only(); !c.Failing || c.Delivered+c.Failed != 0 || c.Attempts != uint64(len(got)) || c.Waiting != 3 {
			t.Errorf("%+v", c)
		}
		if text := log.text(); strings.Count(text, "retrying") != 1 || strings.Contains(text, "T0K3N") {
			t.Errorf("the log has\n%s", text)
		}

		answer(200)
		time.Sleep(time.Minute)
		synctest.Wait()
		if c := n.only(); c.Delivered != 3 || c.Failing || c.Waiting != 0 || len(got) != 3 || got[0].Text+got[1].Text+got[2].Text != "012" {
			t.Errorf("%+v, %+v", c, got)
		}
		if !strings.Contains(log.text(), "delivered again") {
			t.Errorf("the log has\n%s", log.text())
		}

		for _, final := range []int{400, 404, 410, 301, 302, 307} {
			answer(final)
			n.Send(Event{Kind: Feed, Text: "x"})
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(got) != 1 {
				t.Errorf("%d attempts where the answer is %d", len(got), final)
			}
		}
		for _, again := range []int{0, 408, 425, 429, 500} {
			answer(again)
			n.Send(Event{Kind: Feed, Text: "x"})
			time.Sleep(giveUp + maxRetry)
			synctest.Wait()
			if c := n.only(); len(got) < 2 || c.Waiting != 0 {
				t.Errorf("%d attempts where the answer is %d, %+v", len(got), again, c)
			}
		}
		if c := n.only(); c.Failed != 11 {
			t.Errorf("%+v", c)
		}
		n.Close(0)
	})
}

// A receiver that does not answer costs the sender nothing, and the others as little.
// Of its events the oldest are discarded, which is counted, logged, and said with the
// next one, and again, with that one, where it is given up.
func TestSlowReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var mu sync.Mutex
		got := make(map[string][]received)
		n, log := newNotifier(t)
		n.transport = answers(func(body []byte, h http.Header) (int, http.Header) {
			var e received
			if err := json.Unmarshal(body, &e); err != nil {
				t.Error(err)
			}
			if h.Get("To") == "slow" {
				<-hang
			}
			mu.Lock()
			defer mu.Unlock()
			got[h.Get("To")] = append(got[h.Get("To")], e)
			if h.Get("To") == "slow" && (e.Text == "100" || e.Text == "102") {
				return 400, http.Header{}
			}
			return 200, http.Header{}
		})
		var targets []Target
		for _, name := range []string{"slow", "fast"} {
			target := Target{Name: name, URL: "http://192.0.2.1", Headers: map[string]string{"To": name}}
			target.SetDefaults()
			target.Timeout = quantity.Duration(time.Minute)
			targets = append(targets, target)
		}
		n.Configure(targets)
		const sent = maxQueue + 100
		for i := range sent {
			began := time.Now()
			n.Send(Event{Kind: Feed, Text: strconv.Itoa(i)})
			synctest.Wait()
			if took := time.Since(began); took != 0 {
				t.Fatalf("Send took %v", took)
			}
		}
		fast, slow := n.Counts()[0], n.Counts()[1]
		if fast.Delivered != sent || slow.Discarded != sent-maxQueue-1 || slow.Waiting != maxQueue+1 {
			t.Errorf("%+v, %+v", fast, slow)
		}
		close(hang)
		synctest.Wait()
		all := got["slow"]
		if len(all) != maxQueue+1 || all[0].Text != "0" || all[1].Text != "100" || all[1].Missed != 99 || all[2].Missed != 99+1 || all[3].Missed != 0 || all[4].Missed != 1 || all[5].Missed != 0 || all[maxQueue].Text != strconv.Itoa(sent-1) {
			t.Errorf("%d events, %+v", len(all), all[:6])
		}
		if strings.Count(log.text(), "discarded") != 2 { // the message and its attribute
			t.Errorf("the log has\n%s", log.text())
		}
		n.Close(0)
	})
}

// A redirect is not followed, wherever it leads: it might lead to a server that only
// this host can reach.
func TestRedirect(t *testing.T) {
	reached := false
	inner := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer inner.Close()
	s := httptest.NewServer(http.RedirectHandler(inner.URL+"/T0K3N", http.StatusTemporaryRedirect))
	defer s.Close()
	n, log := newNotifier(t, Target{Name: "a", URL: URL(s.URL)})
	n.Send(Event{Kind: Feed})
	wait.For(t, "given up", func() bool { return n.only().Failed == 1 })
	if text := log.text(); reached || !strings.Contains(text, inner.URL) || strings.Contains(text, "T0K3N") {
		t.Errorf("reached %t\n%s", reached, text)
	}
}

// Events go to the targets that want their kind, and a test to all.
func TestKinds(t *testing.T) {
	var mu sync.Mutex
	got := make(map[string][]string)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var e received
		if err := json.NewDecoder(q.Body).Decode(&e); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		got[q.URL.Path] = append(got[q.URL.Path], e.Kind)
		fmt.Fprint(w, "thank\x1b[31m\nyou")
	}))
	defer s.Close()
	n, _ := newNotifier(t, Target{Name: "all", URL: URL(s.URL + "/all")}, Target{Name: "some", URL: URL(s.URL + "/some"), Events: []Kind{Surge, Feed}})
	for _, k := range kinds {
		n.Send(Event{Kind: k})
	}
	wait.For(t, "all events", func() bool { c := n.Counts(); return c[0].Delivered == uint64(len(kinds)) && c[1].Delivered == 2 })
	tested, err := n.Test(t.Context(), "some")
	if err != nil || len(tested) != 1 || tested[0].Err != nil || tested[0].Answer != "200 OK: thank\uFFFD[31m you" || tested[0].Place != s.URL+"/…" {
		t.Errorf("%+v, %v", tested, err)
	}
	if all, err := n.Test(t.Context(), ""); err != nil || len(all) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := n.Test(t.Context(), "other"); !errors.Is(err, ErrNoTarget) {
		t.Error(err)
	}
	none, _ := newNotifier(t)
	if _, err := none.Test(t.Context(), ""); !errors.Is(err, ErrNoTarget) {
		t.Errorf("without targets: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	all, some := strings.Join(got["/all"], " "), strings.Join(got["/some"], " ")
	if all != "heavy penalty feed interface refused surge test" || some != "feed surge test test" {
		t.Errorf("%s; %s", all, some)
	}
}

// script writes an executable.
func script(t *testing.T, text string) quantity.Path {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return quantity.Path(path)
}

// A command gets the event on standard input, and arguments that no shell reads; it
// runs once at a time.
func TestCommand(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	c := script(t, "[ ! -e "+dir+"/running ] || echo twice >>"+out+"\n touch "+dir+"/running\nprintf '%s %s %s\\n' \"$1\" \"$WEIR_SECRET\" \"$(cat)\" >>"+out+"; sleep 0.05; rm "+dir+"/running\n")
	t.Setenv("WEIR_SECRET", "s3cr3t")
	n, _ := newNotifier(t, Target{Name: "a", Command: c, Arguments: []string{"$(id)"}})
	for i := range 5 {
		n.Send(Event{Kind: Feed, Text: strconv.Itoa(i)})
	}
	wait.For(t, "five events", func() bool { return n.only().Delivered == 5 })
	text := must.Read(t, out)
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		body, ok := strings.CutPrefix(line, "$(id)  ")
		var e received
		if err := json.Unmarshal([]byte(body), &e); !ok || err != nil || e.Text != strconv.Itoa(i) {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// A command that fails is logged with the beginning of its output; one that exits
// with 75 is run again; one that takes too long is killed with its children.
func TestCommandFails(t *testing.T) {
	n, log := newNotifier(t, Target{Name: "a", Command: script(t, "echo oh no >&2; yes '' | head -c 100000; exit 3")})
	n.Send(Event{Kind: Feed})
	wait.For(t, "a failure", func() bool { return n.only().Failed == 1 })
	if text := log.text(); !strings.Contains(text, "exit status 3: oh no") || len(text) > 3000 {
		t.Errorf("the log has\n%.3000s", text)
	}

	once := filepath.Join(t.TempDir(), "once")
	n, _ = newNotifier(t, Target{Name: "a", Command: script(t, "[ -e "+once+" ] && exit 0; touch "+once+"; exit 75")})
	n.Send(Event{Kind: Feed})
	wait.For(t, "a second attempt", func() bool { return n.only().Delivered == 1 })
	if c := n.only(); c.Attempts != 1 || c.Failed != 0 {
		t.Errorf("%+v", c)
	}

	pid := filepath.Join(t.TempDir(), "pid")
	n, log = newNotifier(t, Target{Name: "a", Command: script(t, "sleep 1000 & echo $! >"+pid+"; wait"), Timeout: quantity.Duration(500 * time.Millisecond)})
	n.Send(Event{Kind: Feed})
	wait.For(t, "a timeout", func() bool { return n.only().Failed == 1 })
	if !strings.Contains(log.text(), "not done within 500ms") {
		t.Errorf("the log has\n%s", log.text())
	}
	child, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the end of the child", func() bool {
		state, err := os.ReadFile("/proc/" + strings.TrimSpace(string(child)) + "/stat")
		return err != nil || strings.Contains(string(state), ") Z ")
	})
	n, log = newNotifier(t, Target{Name: "a", Command: "/nonexistent"})
	n.Send(Event{Kind: Feed})
	wait.For(t, "a failure", func() bool { return n.only().Failed == 1 })
	if !strings.Contains(log.text(), "no such file") {
		t.Error(log.text())
	}
}

// A command that leaves a child with its output open has done its work.
func TestCommandLeavesChild(t *testing.T) {
	done := filepath.Join(t.TempDir(), "done")
	n, log := newNotifier(t, Target{Name: "a", Command: script(t, "(sleep 3; touch "+done+") & echo begun")})
	n.Send(Event{Kind: Feed})
	wait.For(t, "the end of the command", func() bool { c := n.only(); return c.Delivered+c.Failed == 1 })
	if c := n.only(); c.Failed != 0 {
		t.Errorf("%+v\n%s", c, log.text())
	}
	wait.For(t, "the end of the child", func() bool { _, err := os.Stat(done); return err == nil })
}

// Targets that a reload leaves alone keep what waits for them; counters never go
// back.
func TestConfigure(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close() // refuses
	target := Target{Name: "a", URL: URL(s.URL)}
	n, log := newNotifier(t, target)
	target.SetDefaults()
	for range 3 {
		n.Send(Event{Kind: Feed})
	}
	other := Target{Name: "b", URL: URL(s.URL)}
	other.SetDefaults()
	n.Configure([]Target{other, target})
	if all := n.Counts(); len(all) != 2 || all[0].Waiting != 3 {
		t.Errorf("%+v", all)
	}
	n.Configure([]Target{other})
	wait.For(t, "the end of a", func() bool { return n.Counts()[0].Discarded == 3 })
	if !strings.Contains(log.text(), "discarded=3") {
		t.Error(log.text())
	}
	n.Configure([]Target{other, target})
	if c := n.only(); c.Target != "a" || c.Discarded != 3 || c.Waiting != 0 {
		t.Errorf("%+v", c)
	}
}

// Close gives receivers that work the time for the last events, and no more.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := newNotifier(t)
		hang := false
		n.transport = answers(func([]byte, http.Header) (int, http.Header) {
			if time.Sleep(100 * time.Millisecond); hang {
				time.Sleep(time.Hour)
			}
			return 200, http.Header{}
		})
		target := Target{Name: "a", URL: "http://192.0.2.1"}
		target.SetDefaults()
		n.Configure([]Target{target})
		for range 5 {
			n.Send(Event{Kind: Feed})
		}
		n.Close(2 * time.Second)
		if c := n.only(); c.Delivered != 5 {
			t.Errorf("%+v", c)
		}
	})
}

func TestValidate(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) quantity.Path {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return quantity.Path(path)
	}
	for want, target := range map[string]Target{
		"":                                {Name: "a", URL: "http://a", SecretFile: file("good", secret+"\n", 0o640)},
		"the name":                        {Name: "a b", URL: "http://a"},
		"want a url, a command or syslog": {Name: "a"},
		"either a url or a command":       {Name: "a", URL: "http://a", Command: "/bin/true"},
		"make two targets":                {Name: "a", Syslog: "udp://a:1", Command: "/bin/true"},
		"go with syslog":                  {Name: "a", Command: "/bin/true", Format: CEF, Timeout: quantity.Duration(time.Second)},
		"goes with tls://":                {Name: "a", Syslog: "udp://a:1", TLS: endpoint.TLS{CA: "/ca"}},
		"go with a url":                   {Name: "a", Command: "/bin/true", Secret: secret},
		"go with a command":               {Name: "a", URL: "http://a", Arguments: []string{"x"}},
		"either secret or":                {Name: "a", URL: "http://a", Secret: secret, SecretFile: "/x"},
		"twice":                           {Name: "a", URL: "http://a", Events: []Kind{Feed, Feed}},
		"timeout":                         {Name: "a", URL: "http://a", Timeout: 1},
		"no such file":                    {Name: "a", URL: "http://a", SecretFile: "/nonexistent"},
		"lets everybody read":             {Name: "a", URL: "http://a", SecretFile: file("open", secret, 0o644)},
		"want a secret of 16":             {Name: "a", URL: "http://a", SecretFile: file("short", "secret", 0o600)},
		"to 4096 bytes":                   {Name: "a", URL: "http://a", SecretFile: file("long", strings.Repeat("x", maxSecret+1), 0o600)},
		"is not an executable":            {Name: "a", Command: file("plain", "", 0o600)},
		"lets everybody change":           {Name: "a", Command: file("writable", "", 0o777)},
		"/nonexistent/c: no such file or": {Name: "a", Command: "/nonexistent/c"},
	} {
		if target.Timeout == 0 {
			target.SetDefaults()
		}
		err := errors.Join(target.Validate(), target.ValidateFiles())
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", target, err, want)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%v has the secret", err)
		}
	}
	if err := new(Secret).UnmarshalText([]byte("s3cr3t")); err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Error(err)
	}
}

// examples are an event of each kind, with all fields of the kind.
func examples() []Event {
	return []Event{
		{Kind: Heavy, State: Begin, More: 3, Missed: 2, Flow: &FlowEvent{Flow: "192.0.2.1", Tracker: "src", Action: "report", Packets: 1, Bytes: 60, Interval: 1}},
		{Kind: Penalty, State: End, Flow: &FlowEvent{Flow: "192.0.2.1", Tracker: "src", Action: "block", Unmet: true, CutsOff: "the gateway 192.0.2.1"}},
		{Kind: Feed, State: Begin, Feed: &FeedEvent{List: "drop", Source: "https://example.com", Failure: "timeout", Error: "x", Entries: 1}},
		{Kind: Interface, State: Begin, Interface: &InterfaceEvent{Interface: "eth0", Netns: "lab", State: "unfiltered", Problem: "x"}},
		{Kind: Refused, Change: &ChangeEvent{Change: "block", List: "manual", Error: "x", Entries: 1, UID: new(uint32(7)), User: "x", Source: "socket"}},
		{Kind: Surge, State: Begin, Drops: &DropsEvent{Rate: 1, Average: 1, Threshold: 1, Monitor: true}},
		{Kind: Test},
	}
}

// The published schema describes what is sent: it has each field, and no other.
func TestSchema(t *testing.T) {
	const file = "../../docs/api/notification.schema.json"
	text := must.Read(t, file)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource(file, doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile(file)
	if err != nil {
		t.Fatal(err)
	}
	n, _ := newNotifier(t)
	sent := make(map[string]bool)
	for _, e := range examples() {
		e.Severity = Warning
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(n.complete(e).body()))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(v); err != nil {
			t.Error(err)
		}
		for name, value := range v.(map[string]any) {
			sent[name] = true
			if inner, ok := value.(map[string]any); ok {
				for field := range inner {
					sent[name+"."+field] = true
				}
			}
		}
	}
	properties := doc.(map[string]any)["properties"].(map[string]any)
	for name, value := range properties {
		inner, _ := value.(map[string]any)["properties"].(map[string]any)
		for field := range inner {
			if !sent[name+"."+field] {
				t.Errorf("no event has %s.%s", name, field)
			}
		}
		if !sent[name] {
			t.Errorf("no event has %s", name)
		}
	}
}

// Texts that others chose are bounded, and valid UTF-8.
func TestBounded(t *testing.T) {
	long := strings.Repeat("ä", 5000) + "\xff"
	e := Event{Text: long, Feed: &FeedEvent{Error: long, Source: long}, Change: &ChangeEvent{Error: long}, Interface: &InterfaceEvent{Problem: long}}
	if body := e.body(); len(body) > 6*maxText || !json.Valid(body) {
		t.Errorf("%d bytes", len(body))
	}
}

// What names of files and texts of servers contain gives no orders to a terminal, in any form.
func TestVisible(t *testing.T) {
	const hostile, shown = "a\x1b[2J\u202eb\u009c\x07", `a\u001b[2J\u202eb\u009c\u0007`
	e := Event{
		Kind: Feed, Text: hostile, Feed: &FeedEvent{Source: hostile, Error: hostile},
		Interface: &InterfaceEvent{Interface: hostile, Netns: hostile, Problem: hostile}, Change: &ChangeEvent{Error: hostile, Source: hostile},
	}
	var sent Event
	if err := json.Unmarshal(e.body(), &sent); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		sent.Text, sent.Feed.Source, sent.Feed.Error, sent.Interface.Interface, sent.Interface.Netns, sent.Interface.Problem, sent.Change.Error, sent.Change.Source,
	} {
		if text != shown {
			t.Errorf("%q", text)
		}
	}
	for _, form := range []Format{RFC5424, CEF} {
		if text := e.syslog(form, "1"); strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && r != '\ufeff' }) {
			t.Errorf("%v: %q", form, text)
		}
	}
}

// A surge begins after three seconds above the threshold, and ends after ten below
// half of it; what is usual is no surge, and a short spike is none.
func TestSurge(t *testing.T) {
	type step struct {
		rate    float64
		seconds int
		want    State // at the end of the seconds, and only there
	}
	for name, c := range map[string]struct {
		SurgeSpec
		steps []step
	}{
		"multiple":   {SurgeSpec{Times: 10}, []step{{200, 60, ""}, {1999, 5, ""}, {9000, 2, ""}, {300, 30, ""}, {9000, 3, Begin}, {9000, 600, ""}, {1000, 9, ""}, {9000, 1, ""}, {1000, 10, End}, {300, 60, ""}}},
		"quiet":      {SurgeSpec{Times: 10}, []step{{0, 100, ""}, {999, 5, ""}, {5000, 3, Begin}, {0, 10, End}}},
		"from begin": {SurgeSpec{Times: 10}, []step{{50000, 100, ""}, {90000, 100, ""}}},
		"rate":       {SurgeSpec{Rate: quantity.Rate{Value: 5000, Unit: quantity.Packets}}, []step{{4999, 60, ""}, {5000, 3, Begin}, {2500, 60, ""}, {2499, 10, End}}},
		"both":       {SurgeSpec{Rate: quantity.Rate{Value: 5000, Unit: quantity.Packets}, Times: 10}, []step{{900, 60, ""}, {5000, 3, Begin}, {0, 10, End}}},
		"off":        {SurgeSpec{}, []step{{0, 10, ""}, {1e9, 60, ""}}},
	} {
		m := Meter{SurgeSpec: c.SurgeSpec}
		for i, s := range c.steps {
			for second := range s.seconds {
				got, drops := m.Observe(s.rate)
				want := s.want
				if second < s.seconds-1 {
					want = ""
				}
				if got != want || (drops != nil) != (want != "") {
					t.Errorf("%s: step %d, second %d: %q, want %q", name, i, second, got, want)
				}
			}
		}
	}
}

// An error of a request is without its URL, of which all but the host may be secret.
func TestErrorsAreWithoutURL(t *testing.T) {
	n, _ := newNotifier(t, Target{Name: "a", URL: "http://user:T0K3N@127.0.0.1:1/T0K3N?q=T0K3N"})
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience)
	defer cancel()
	tested, err := n.Test(ctx, "")
	if err != nil || len(tested) != 1 || tested[0].Err == nil || strings.Contains(fmt.Sprint(tested), "T0K3N") {
		t.Errorf("%+v, %v", tested, err)
	}
}
