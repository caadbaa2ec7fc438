package feed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"weir/control/list"
	"weir/filter/key"
	"weir/tests/must"
)

// zone answers lookups by name, and counts them.
type zone struct {
	mu      sync.Mutex
	answers map[string]string // addresses, or an error's text after "!"
	ttl     time.Duration
	asked   map[string]int
}

func (z *zone) set(name, answer string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.answers[name] = answer
}

func (z *zone) lookup(_ context.Context, network, name string) ([]netip.Addr, time.Duration, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.asked == nil {
		z.asked = make(map[string]int)
	}
	if network == "ip4" {
		z.asked[name]++
	}
	text, ok := z.answers[name+" "+network] // of this family alone
	if !ok {
		text, ok = z.answers[name]
	}
	if wrong, failed := strings.CutPrefix(text, "!"); failed || !ok {
		return nil, 0, errors.New("no such name" + wrong)
	}
	var all []netip.Addr
	for field := range strings.FieldsSeq(text) {
		if a := netip.MustParseAddr(field); a.Unmap().Is4() == (network == "ip4") {
			all = append(all, a)
		}
	}
	if all == nil {
		return nil, 0, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	return all, z.ttl, nil
}

// namesFeed returns a feed of names from a file, of which a zone resolves.
func namesFeed(t *testing.T, z *zone, file, state string) *Feed {
	t.Helper()
	spec := DefaultSpec(Source{File: Path(file)})
	spec.Format.Kind = Names
	f, err := Open(t.Context(), Config{Name: "names", Spec: spec}, state)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range f.sources {
		s.lookup = z.lookup
	}
	return f
}

func contentsOf(f *Feed) string {
	var all []string
	for p := range f.Contents().V4.Plain.All() {
		all = append(all, p.String())
	}
	for p := range f.Contents().V6.Plain.All() {
		all = append(all, p.String())
	}
	return strings.Join(all, " ")
}

// TestHostNames checks that names are resolved, that one that fails keeps its last addresses,
// after a restart, too, and what status and explanations say of it.
func TestHostNames(t *testing.T) {
	dir := t.TempDir()
	file, state := filepath.Join(dir, "names.txt"), filepath.Join(dir, "state")
	text := "# ours\nHome.example.org.  # at home\n\n198.51.100.0/24 ; office\nvpn.example.org\nlocalhost\ngone.example.org\n"
	must.Write(t, file, text)
	z := &zone{ttl: time.Hour, answers: map[string]string{
		"home.example.org": "192.0.2.7 2001:db8::7", "vpn.example.org": "::ffff:192.0.2.9 0.0.0.0 127.0.0.1 224.0.0.1",
	}}
	f := namesFeed(t, z, file, state)
	fetch := func(result Result) Outcome {
		t.Helper()
		o, err := f.Fetch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if o[0].Result != result {
			t.Errorf("result %v (%v), want %v", o[0].Result, o[0].Err, result)
		}
		return o[0]
	}
	want := func(entries string, bad ...string) {
		t.Helper()
		if got := contentsOf(f); got != entries {
			t.Errorf("contents %s, want %s", got, entries)
		}
		lines, _ := f.Status().Sources[0].BadLines()
		if len(lines) != len(bad) {
			t.Errorf("bad lines %q, want %q", lines, bad)
			return
		}
		for i, line := range lines {
			if !strings.Contains(line, bad[i]) {
				t.Errorf("bad line %q, want %s", line, bad[i])
			}
		}
	}
	fetch(New)
	wrong := `names.txt:6: "localhost": want a name with a dot`
	want("192.0.2.7 192.0.2.9 198.51.100.0/24 2001:db8::7", wrong, `names.txt:7: no such name: "gone.example.org"`)
	k := list.V4(0xc0000207, 32).Key(true)
	if o := f.Find([]key.Key{k}); o[0].Reason != "home.example.org" || o[0].Source != file {
		t.Errorf("origin %+v", o[0])
	}

	// Nothing is due yet but what failed, and what is new in the file.
	z.set("home.example.org", "192.0.2.8")
	z.set("new.example.org", "192.0.2.20")
	must.Write(t, file, text+"new.example.org\n")
	if o, err := f.attempt(t.Context(), f.sources[0], due); err != nil || o.Result != New {
		t.Errorf("%+v, %v", o, err)
	}
	want("192.0.2.7 192.0.2.9 192.0.2.20 198.51.100.0/24 2001:db8::7", wrong, "gone.example.org")
	if z.asked["home.example.org"] != 1 || z.asked["new.example.org"] != 1 {
		t.Errorf("asked %v", z.asked)
	}

	// After a restart the resolver does not know a name: its last addresses stay.
	z.set("home.example.org", "!, for a while")
	z.set("vpn.example.org", "192.0.2.10")
	f = namesFeed(t, z, file, state)
	if got := contentsOf(f); got != "192.0.2.7 192.0.2.9 192.0.2.20 198.51.100.0/24 2001:db8::7" {
		t.Errorf("after a restart: %s", got)
	}
	fetch(New)
	want("192.0.2.7 192.0.2.10 192.0.2.20 198.51.100.0/24 2001:db8::7", wrong,
		"its last addresses stay: no such name, for a while", "gone.example.org")

	// No resolver answers.
	for name := range z.answers {
		z.set(name, "!")
	}
	f = namesFeed(t, z, file, state)
	fetch(Unchanged)
	want("192.0.2.7 192.0.2.10 192.0.2.20 198.51.100.0/24 2001:db8::7", wrong, "last addresses", "last addresses", "gone", "last addresses")
	must.Write(t, file, "gone.example.org\n")
	if o := fetch(Failed); !strings.Contains(o.Err.Error(), "no name can be resolved") {
		t.Errorf("%v", o.Err)
	}
	if got := contentsOf(f); got == "" {
		t.Error("the list is empty")
	}
}

// TestHostNamesFromURL checks that a URL that has lost its names, all or most of them, is refused
// until that is accepted, and that the names have their addresses meanwhile.
func TestHostNamesFromURL(t *testing.T) {
	names := func(n int) string {
		var all strings.Builder
		for i := range n {
			fmt.Fprintf(&all, "n%d.example.org\n", i)
		}
		return all.String()
	}
	z := &zone{answers: make(map[string]string)}
	var ten []string
	for i := range 10 {
		ten = append(ten, fmt.Sprintf("192.0.2.%d", 10+i))
		z.set(fmt.Sprintf("n%d.example.org", i), ten[i])
	}
	server, state := serve(t, text(names(10))), t.TempDir()
	open := func() *Feed {
		f := mustOpen(t, named("names", Format{Kind: Names}, from(server)), state)
		f.sources[0].lookup = z.lookup
		return f
	}
	f := open()
	want(t, f, fetch(t, f), New, NoFailure, strings.Join(ten, " "))
	for _, restarted := range []bool{false, true} {
		if restarted {
			f = open()
		}
		for body, failure := range map[string]Failure{"": Empty, "# 192.0.2.1\n\n": Empty, names(4): Shrunk, names(1): Shrunk} {
			server.now(text(body))
			want(t, f, fetch(t, f), Failed, failure, strings.Join(ten, " "))
		}
	}
	for i := range 10 {
		z.set(fmt.Sprintf("n%d.example.org", i), "!")
	}
	server.now(text(names(10)))
	for _, known := range f.sources[0].names {
		known.until = time.Time{}
	}
	want(t, f, fetch(t, f), Unchanged, NoFailure, strings.Join(ten, " "))

	// Half of them may go, and a name may lose most of its addresses.
	z.set("n0.example.org", "192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5 192.0.2.6 192.0.2.7 192.0.2.8 192.0.2.9")
	f = open()
	server.now(text(names(5)))
	if o := fetch(t, f); o.Result != New || o.Entries != 13 {
		t.Errorf("%+v", o)
	}
	z.set("n0.example.org", "192.0.2.1")
	f = open()
	want(t, f, fetch(t, f), New, NoFailure, "192.0.2.1 192.0.2.11 192.0.2.12 192.0.2.13 192.0.2.14")
	server.now(text(names(1)))
	for range 2 {
		o, err := f.Accept(t.Context())
		if err != nil || o[0].Err != nil || o[0].Entries != 1 {
			t.Errorf("accepted: %+v, %v", o, err)
		}
	}
	want(t, f, fetch(t, f), Unchanged, NoFailure, "192.0.2.1")
	server.now(text("# none\n"))
	if o, err := f.Accept(t.Context()); err != nil || o[0].Result != New || o[0].Entries != 0 {
		t.Errorf("accepted: %+v, %v", o, err)
	}
}

// TestHostNamesTruncated checks that names are not taken from an answer that breaks off, nor from
// a text with a line that cannot be read.
func TestHostNamesTruncated(t *testing.T) {
	z := &zone{answers: map[string]string{"a.example.org": "192.0.2.1", "b.example.org": "192.0.2.2"}}
	server := serve(t, text("a.example.org\nb.example.org\n"))
	f := mustOpen(t, named("names", Format{Kind: Names}, from(server)), t.TempDir())
	f.sources[0].lookup = z.lookup
	want(t, f, fetch(t, f), New, NoFailure, "192.0.2.1 192.0.2.2")
	server.now(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, "a.example.org\n")
	})
	want(t, f, fetch(t, f), Failed, Truncated, "192.0.2.1 192.0.2.2")
	server.now(text("a.example.org\n" + strings.Repeat("x", 70_000) + "\nb.example.org\n"))
	want(t, f, fetch(t, f), Failed, Garbage, "192.0.2.1 192.0.2.2")
}

// TestDirectoryMissing checks that a directory without files, as one that is not mounted, does not
// empty a list that is made of its files, and that empty files do.
func TestDirectoryMissing(t *testing.T) {
	database := filepath.Join(t.TempDir(), "asn.mmdb")
	must.Write(t, database, countries(t, map[string]string{"192.0.2.0/24": "AS64496"}))
	for _, c := range []struct {
		format      Format
		full, empty string
		entries     string
	}{
		{Format{Kind: Names}, "a.example.org\n", "# nothing\n", "192.0.2.1"},
		{Format{Kind: ASNs, Database: Path(database)}, "AS64496\n", "", "192.0.2.0/24"},
		{Format{Kind: STIX}, `{"objects": [{"type": "indicator", "pattern": "[ipv4-addr:value = '192.0.2.1']"}]}`, "", "192.0.2.1"},
	} {
		t.Run(c.format.Kind.String(), func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "list")
			f := mustOpen(t, named("made", c.format, Source{Directory: Path(dir)}), t.TempDir())
			z := &zone{answers: map[string]string{"a.example.org": "192.0.2.1"}}
			f.sources[0].lookup = z.lookup
			want(t, f, fetch(t, f), Failed, Empty, "")
			must.Write(t, file, c.full)
			want(t, f, fetch(t, f), New, NoFailure, c.entries)
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			want(t, f, fetch(t, f), Failed, Empty, c.entries)
			must.Write(t, file, c.full)
			want(t, f, fetch(t, f), Unchanged, NoFailure, c.entries)
			must.Write(t, file, c.empty)
			want(t, f, fetch(t, f), New, NoFailure, "")
		})
	}
}

// TestHostNamesByFamily checks that a family whose lookup fails keeps its last addresses, and
// that one without addresses has none.
func TestHostNamesByFamily(t *testing.T) {
	dir := t.TempDir()
	file, state := filepath.Join(dir, "names.txt"), filepath.Join(dir, "state")
	must.Write(t, file, "a.example.org\n")
	z := &zone{answers: map[string]string{}}
	for _, step := range []struct{ four, six, want, bad string }{
		{"192.0.2.1", "!", "192.0.2.1", "no IPv6 addresses: no such name"}, // some servers never answer for AAAA
		{"192.0.2.1", "2001:db8::1", "192.0.2.1 2001:db8::1", ""},
		{"192.0.2.2", "!", "192.0.2.2 2001:db8::1", "its last IPv6 addresses stay: no such name"},
		{"!", "2001:db8::2", "192.0.2.2 2001:db8::2", "its last IPv4 addresses stay: no such name"},
		{"!", "", "192.0.2.2 2001:db8::2", "its last addresses stay: no such name"},
		{"", "!", "192.0.2.2 2001:db8::2", "its last addresses stay: no such name"},
		{"", "", "192.0.2.2 2001:db8::2", "its last addresses stay: lookup"},
		{"0.0.0.0", "", "192.0.2.2 2001:db8::2", "its last addresses stay: lookup"},
		{"0.0.0.0", "!", "2001:db8::2", "its last IPv6 addresses stay: no such name"},
		{"192.0.2.3", "2001:db8::3", "192.0.2.3 2001:db8::3", ""},
		{"192.0.2.3", "", "192.0.2.3", ""},
	} {
		z.set("a.example.org ip4", step.four)
		z.set("a.example.org ip6", step.six)
		f := namesFeed(t, z, file, state) // with what was saved
		if _, err := f.Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		lines, _ := f.Status().Sources[0].BadLines()
		if got := contentsOf(f); got != step.want || (len(lines) == 1) != (step.bad != "") || !strings.Contains(strings.Join(lines, "\n"), step.bad) {
			t.Errorf("%q and %q: %s, want %s; %q, want %q", step.four, step.six, got, step.want, lines, step.bad)
		}
	}
}

// TestSilentResolver checks that names are resolved where the first two servers are silent, each
// for the five seconds for which a resolver waits, and many where only the first one is.
func TestSilentResolver(t *testing.T) {
	file := filepath.Join(t.TempDir(), "names.txt")
	for _, c := range []struct {
		names int
		after time.Duration
	}{{1, 10 * time.Second}, {88, 5 * time.Second}} {
		var text strings.Builder
		z := &zone{ttl: time.Hour, answers: make(map[string]string)}
		for i := range c.names {
			fmt.Fprintf(&text, "n%d.example.org\n", i)
			z.set(fmt.Sprintf("n%d.example.org", i), fmt.Sprintf("192.0.2.%d 2001:db8::%x", i+1, i+1))
		}
		must.Write(t, file, text.String())
		synctest.Test(t, func(t *testing.T) {
			f := namesFeed(t, z, file, "")
			f.sources[0].lookup = func(ctx context.Context, network, name string) ([]netip.Addr, time.Duration, error) {
				select {
				case <-time.After(c.after + 20*time.Millisecond):
					return z.lookup(ctx, network, name)
				case <-ctx.Done():
					return nil, 0, ctx.Err()
				}
			}
			began := time.Now()
			o, err := f.Fetch(t.Context())
			if err != nil || o[0].Entries != 2*c.names || time.Since(began) > lookupsTimeout {
				t.Errorf("%d names that take %v: %+v, %v, after %v", c.names, c.after, o, err, time.Since(began))
			}
		})
	}
}

// TestHostNamesInTime checks that names are looked up again when their addresses are no longer
// valid, and not before.
func TestHostNamesInTime(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "names.txt")
	must.Write(t, file, "a.example.org\nb.example.org\n")
	synctest.Test(t, func(t *testing.T) {
		z := &zone{ttl: 2 * time.Minute, answers: map[string]string{"a.example.org": "192.0.2.1"}}
		f := namesFeed(t, z, file, "")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.Run(ctx, func(Outcome) {})
		}()
		time.Sleep(time.Second)
		z.set("a.example.org", "192.0.2.2")
		time.Sleep(90 * time.Second)
		if got := contentsOf(f); got != "192.0.2.1" {
			t.Errorf("while it is valid: %s", got)
		}
		if n := z.asked["b.example.org"]; n != 2 {
			t.Errorf("a name that fails was asked for %d times in 90 s, want 2", n)
		}
		z.set("b.example.org", "192.0.2.3")
		time.Sleep(time.Minute)
		if got := contentsOf(f); got != "192.0.2.2 192.0.2.3" {
			t.Errorf("after two minutes: %s", got)
		}
		cancel()
		<-done
	})
}

// TestHostNamesInterval checks that names are looked up again at each interval, however long
// their addresses are valid, and at once for an operator.
func TestHostNamesInterval(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "names.txt")
	must.Write(t, file, "a.example.org\n")
	synctest.Test(t, func(t *testing.T) {
		z := &zone{ttl: 24 * time.Hour, answers: map[string]string{"a.example.org": "192.0.2.1"}}
		f := namesFeed(t, z, file, "")
		f.Jitter = 0
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.Run(ctx, func(Outcome) {})
		}()
		time.Sleep(time.Second)
		z.set("a.example.org", "192.0.2.2")
		time.Sleep(time.Duration(f.Interval) - 2*time.Second)
		if got := contentsOf(f); got != "192.0.2.1" {
			t.Errorf("before the interval ends: %s", got)
		}
		time.Sleep(2 * time.Second)
		if got := contentsOf(f); got != "192.0.2.2" {
			t.Errorf("after the interval: %s", got)
		}
		z.set("a.example.org", "192.0.2.3")
		want(t, f, fetch(t, f), New, NoFailure, "192.0.2.3")
		z.set("a.example.org", "192.0.2.4")
		if _, err := f.Accept(ctx); err != nil {
			t.Error(err)
		}
		if got := contentsOf(f); got != "192.0.2.4" {
			t.Errorf("accepted: %s", got)
		}
		cancel()
		<-done
	})
}

// TestHostNamesInherited checks that a name keeps its last addresses after a reload, too, where
// contents are not saved, and that all names are looked up again.
func TestHostNamesInherited(t *testing.T) {
	for _, saved := range []bool{false, true} {
		file, state := filepath.Join(t.TempDir(), "names.txt"), ""
		must.Write(t, file, "a.example.org\nb.example.org\n")
		if saved {
			state = t.TempDir()
		}
		z := &zone{ttl: time.Hour, answers: map[string]string{"a.example.org": "192.0.2.1", "b.example.org": "192.0.2.2"}}
		former := namesFeed(t, z, file, state)
		want(t, former, fetch(t, former), New, NoFailure, "192.0.2.1 192.0.2.2")
		want(t, former, fetch(t, former), Unchanged, NoFailure, "192.0.2.1 192.0.2.2")
		f := namesFeed(t, z, file, state)
		f.Inherit(former, true)
		z.set("a.example.org", "192.0.2.3")
		z.set("b.example.org", "!, in time")
		o, err := f.attempt(t.Context(), f.sources[0], due)
		if err != nil {
			t.Fatal(err)
		}
		want(t, f, o, New, NoFailure, "192.0.2.2 192.0.2.3")
		want(t, former, fetch(t, former), New, NoFailure, "192.0.2.2 192.0.2.3")
	}
}

// TestHostNamesBounds checks that a source of too many names is refused, and that of a name's
// addresses some are taken.
func TestHostNamesBounds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "names.txt")
	var text strings.Builder
	for i := range maxNames + 1 {
		fmt.Fprintf(&text, "n%d.example.org\n", i)
	}
	must.Write(t, file, text.String())
	z := &zone{answers: map[string]string{}}
	f := namesFeed(t, z, file, "")
	if o, err := f.Fetch(t.Context()); err != nil || o[0].Failure != TooLarge || len(z.asked) > 0 {
		t.Errorf("%+v, %v, asked for %d", o, err, len(z.asked))
	}
	var many []string
	for i := range 200 {
		many = append(many, fmt.Sprintf("192.0.2.%d", i))
	}
	z.set("n0.example.org", strings.Join(many, " "))
	must.Write(t, file, "n0.example.org\n")
	if o, err := f.Fetch(t.Context()); err != nil || o[0].Entries != maxAddresses {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestNameLines checks what a name is.
func TestNameLines(t *testing.T) {
	for text, want := range map[string]string{
		"home.example.org": "home.example.org", "A.B": "a.b", "_x.a-b.example.": "_x.a-b.example", "192.0.2.1": "192.0.2.1", "2001:db8::/48": "2001:db8::/48",
		"localhost": "", "a..b": "", "-a.b": "", "192.0.2.256": "", "a b.c": "", "a.b/24": "", strings.Repeat("a", 64) + ".b": "", strings.Repeat("a.", 127) + "b": "",
		"*.example.org": "", "tcp 192.0.2.1:* > *:22": "tcp 192.0.2.1:* > *:22", "bücher.example": "",
	} {
		l, err := parseNameLine(1, text)
		got := ""
		if err == nil {
			got = l.text
			if l.name != "" {
				got = l.name
			}
		}
		if got != want {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}

// TestSystemLookup asks a resolver on this host by the standard library, and checks how long
// the answers are valid, and that a failure differs from an answer without addresses.
func TestSystemLookup(t *testing.T) {
	server, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for buf := make([]byte, 1500); ; {
			n, from, err := server.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			var q dnsmessage.Message
			if q.Unpack(buf[:n]) != nil || len(q.Questions) != 1 {
				continue
			}
			q.Response, q.RecursionAvailable, q.Additionals = true, true, nil
			head := dnsmessage.ResourceHeader{Name: q.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 300}
			switch name, kind := q.Questions[0].Name.String(), q.Questions[0].Type; {
			case strings.HasPrefix(name, "none.") || name == "old.example.org." && kind == dnsmessage.TypeAAAA:
			case name == "broken.example.org." && kind == dnsmessage.TypeAAAA:
				q.RCode = dnsmessage.RCodeServerFailure
			case kind == dnsmessage.TypeA:
				q.Answers = append(q.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: [4]byte{192, 0, 2, 7}}})
			default:
				head.TTL = 90
				q.Answers = append(q.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr("2001:db8::7").As16()}})
			}
			answer, err := q.Pack()
			if err == nil {
				_, _ = server.WriteToUDPAddrPort(answer, from)
			}
		}
	}()
	look := systemLookup(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, server.LocalAddr().String())
	})
	for _, c := range []struct {
		network, name, addresses string
		ttl                      time.Duration
		notFound, failed         bool
	}{
		{"ip4", "home.example.org", "[192.0.2.7]", 5 * time.Minute, false, false},
		{"ip6", "home.example.org", "[2001:db8::7]", 90 * time.Second, false, false},
		{"ip4", "broken.example.org", "[192.0.2.7]", 5 * time.Minute, false, false},
		{"ip6", "broken.example.org", "[]", 0, false, true},
		{"ip6", "old.example.org", "[]", 0, true, false},
		{"ip4", "none.example.org", "[]", 0, true, false},
	} {
		addresses, ttl, err := look(t.Context(), c.network, c.name)
		if fmt.Sprint(addresses) != c.addresses || ttl != c.ttl || (err != nil) != (c.notFound || c.failed) || notFound(err) != c.notFound {
			t.Errorf("%s of %s: %v for %v, %v", c.network, c.name, addresses, ttl, err)
		}
	}
}
