package feed

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/control/quantity"
	"weir/filter/key"
	"weir/tests/must"
)

// Patterns have the addresses that are enough for a match, and no others.
func TestPatterns(t *testing.T) {
	for _, c := range []struct{ pattern, addresses, wrong string }{
		{"[ipv4-addr:value = '192.0.2.1']", "192.0.2.1", ""},
		{"[ ipv4-addr:value='192.0.2.0/24' ]", "192.0.2.0/24", ""},
		{"[ipv6-addr:value = '2001:db8::/32']", "2001:db8::/32", ""},
		{"[ipv4-addr:value IN ('192.0.2.1','192.0.2.2', '192.0.2.3')]", "192.0.2.1 192.0.2.2 192.0.2.3", ""},
		{"[ipv4-addr:value ISSUBSET '192.0.2.0/24']", "192.0.2.0/24", ""},
		{"[network-traffic:dst_ref.value = '192.0.2.1' OR network-traffic:src_ref.value == '192.0.2.2']", "192.0.2.1 192.0.2.2", ""},
		{"[ipv4-addr:value = '192.0.2.1'] OR [ipv6-addr:value = '2001:db8::1']", "192.0.2.1 2001:db8::1", ""},
		{"([ipv4-addr:value = '192.0.2.1' OR (domain-name:value = 'a' OR ipv4-addr:value = '192.0.2.2')])", "192.0.2.1 192.0.2.2", ""},
		{"[network-traffic:dst_ref.type = 'ipv4-addr' AND network-traffic:dst_ref.value = '192.0.2.1']", "192.0.2.1", ""},
		{"[domain-name:value = 'a.example'] OR [ipv4-addr:value = '192.0.2.1']", "192.0.2.1", ""},

		// About something else.
		{"[file:hashes.'SHA-256' = 'ab' AND file:size > 3]", "", ""},
		{"[domain-name:value = 'a']", "", ""},
		{"[url:value LIKE 'http://192.0.2.1/%'] FOLLOWEDBY [process:name = 'x'] WITHIN 5 SECONDS", "", ""},
		{"[file:extensions.'windows-pebinary-ext'.sections[*].entropy > 7.0]", "", ""},
		{"[file:name = 'it\\'s ipv4-addr:value \\\\' AND file:created = t'2026-01-01T00:00:00Z']", "", ""},
		{"[network-traffic:dst_ref.type = 'ipv4-addr']", "", ""},
		{"[network-traffic:dst_ref.type = 'ipv4-addr' OR domain-name:value = 'a']", "", ""},

		// More than an address.
		{"[ipv4-addr:value = '192.0.2.1' AND network-traffic:dst_port = 443]", "", errNarrow.Error()},
		{"[network-traffic:dst_port = 443 AND (ipv4-addr:value = '192.0.2.1')]", "", errNarrow.Error()},
		{"[ipv4-addr:value = '192.0.2.1'] AND [ipv4-addr:value = '192.0.2.2']", "", errNarrow.Error()},
		{"[ipv4-addr:value = '192.0.2.1'] FOLLOWEDBY [domain-name:value = 'a']", "", errNarrow.Error()},
		{"[ipv4-addr:value = '192.0.2.1'] REPEATS 5 TIMES", "", errNarrow.Error()},
		{"[ipv4-addr:value = '192.0.2.1'] WITHIN 5 SECONDS OR [ipv4-addr:value = '192.0.2.2']", "192.0.2.2", errNarrow.Error()},
		{"[ipv4-addr:value = '192.0.2.1' OR ipv4-addr:value = '192.0.2.2' AND network-traffic:dst_port = 1]", "192.0.2.1", errNarrow.Error()},
		{"[ipv4-addr:value != '192.0.2.1']", "", errNarrow.Error()},
		{"[ipv4-addr:value NOT = '192.0.2.1']", "", errNarrow.Error()},
		{"[NOT ipv4-addr:value = '192.0.2.1']", "", errNarrow.Error()},
		{"[ipv4-addr:value NOT IN ('192.0.2.1')]", "", errNarrow.Error()},
		{"[ipv4-addr:value ISSUPERSET '192.0.2.1/32']", "", errNarrow.Error()},
		{"[ipv4-addr:value LIKE '192.0.2.%']", "", errNarrow.Error()},
		{"[EXISTS ipv4-addr:value]", "", errNarrow.Error()},

		{"", "", "instead of"},
		{"192.0.2.1", "", `instead of "["`},
		{"[ipv4-addr:value = '192.0.2.1'", "", `instead of "]"`},
		{"[ipv4-addr:value = '192.0.2.1", "", "an open string"},
		{"[ipv4-addr:value = '192.0.2.1\\", "", "an open string"},
		{"[ipv4-addr:value[0 = 'x']", "", "instead of"},
		{"[ipv4-addr:value 'x']", "", "instead of a constant"},
		{"[ipv4-addr:value IN ]", "", "instead of"},
		{"[ipv4-addr:value = '192.0.2.1']]", "", "not expected"},
		{"[" + strings.Repeat("(", 1000), "", "nested deeper"},
		{strings.Repeat("(", 60), "", "nested deeper"},
		{"[a:b = '" + strings.Repeat("x", maxPattern), "", "more than 65536 bytes"},
	} {
		got, err := addressesOf(c.pattern)
		if strings.Join(got, " ") != c.addresses || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%.200s: %q, %v, want %q, %q", c.pattern, got, err, c.addresses, c.wrong)
		}
	}
}

func FuzzPattern(f *testing.F) {
	f.Add("[ipv4-addr:value IN ('192.0.2.1','a') AND NOT x:y[*].'z' <= t'2'] OR ([a:b > 1] FOLLOWEDBY [c:d LIKE 'e'] WITHIN 5 SECONDS)")
	f.Fuzz(func(_ *testing.T, pattern string) { _, _ = addressesOf(pattern) })
}

const bundle = `{"type": "bundle", "id": "bundle--1", "objects": [
 {"type": "identity", "name": "them", "deep": {"objects": [[[{"type": "indicator"}]]]}},
 {"type": "indicator", "name": "a scanner", "pattern": "[ipv4-addr:value = '192.0.2.1']", "pattern_type": "stix", "valid_from": "2020-01-01T00:00:00.5Z"},
 {"type": "indicator", "pattern": "[ipv6-addr:value = '2001:db8::/32']", "valid_until": %q},
 {"type": "indicator", "pattern": "[ipv4-addr:value = '192.0.2.2']", "revoked": true},
 {"type": "indicator", "pattern": "[ipv4-addr:value = '192.0.2.3']", "valid_until": "2020-01-01T00:00:00Z"},
 {"type": "indicator", "pattern": "[ipv4-addr:value = '192.0.2.4']", "valid_from": "2999-01-01T00:00:00Z"},
 {"type": "indicator", "pattern": "alert ip 192.0.2.5", "pattern_type": "snort"},
 {"type": "indicator", "pattern": "[domain-name:value = 'a.example']", "pattern_type": "stix"}
]}`

// What is valid is read, and goes when it is not valid any more, though the file stays the same.
func TestSTIX(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "bundle.json")
	put := func(text string) {
		t.Helper()
		must.Write(t, file+".new", text)
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	until := time.Now().Add(3 * time.Second)
	put(fmt.Sprintf(bundle, until.Format(time.RFC3339Nano)))
	c := named("iocs", Format{Kind: STIX}, Source{File: Path(file)})
	c.Entries, c.MaxBad = []string{"198.51.100.1"}, 0.3
	f := mustOpen(t, c, filepath.Join(dir, "state"))
	first := func() Outcome {
		t.Helper()
		o, err := f.Fetch(t.Context())
		if err != nil || len(o) != 2 {
			t.Fatalf("%+v, %v", o, err)
		}
		return o[0]
	}
	contents := func(want string) {
		t.Helper()
		if got := strings.Join(textsOf(f.Contents()), " "); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if o := first(); o.Result != New {
		t.Fatalf("%+v", o)
	}
	contents("192.0.2.1 198.51.100.1 2001:db8::/32")
	if origins := f.Find([]key.Key{keyOf(t, "192.0.2.1")}); origins[0].Reason != "a scanner" {
		t.Errorf("%+v", origins)
	}
	time.Sleep(time.Until(until) + 10*time.Millisecond)
	if o := first(); o.Result != New {
		t.Errorf("%+v", o)
	}
	contents("192.0.2.1 198.51.100.1")
	if o := first(); o.Result != Unchanged {
		t.Errorf("%+v", o)
	}

	// Bad values are counted; too many of them, and what is no bundle, are refused.
	object := func(pattern string) string {
		text, _ := json.Marshal(pattern)
		return fmt.Sprintf(`{"type": "indicator", "pattern": %s}`, text)
	}
	good := object("[ipv4-addr:value IN ('192.0.2.6', '192.0.2.7', '192.0.2.8', '192.0.2.9')]")
	put(`{"objects": [` + good + ",\n" + object("[ipv4-addr:value = 'x\n192.0.2.99']") + `]}{"objects":[` + object("[ipv4-addr:value = '192.0.2.10']") + `]}`)
	if o := first(); o.Result != New {
		t.Errorf("%+v", o)
	}
	contents("192.0.2.6 192.0.2.7 192.0.2.8 192.0.2.9 192.0.2.10 198.51.100.1")
	if lines, _ := f.Status().Sources[0].BadLines(); len(lines) != 1 || !strings.Contains(lines[0], "bundle.json:2: not an address") {
		t.Errorf("%q", lines)
	}
	for text, wrong := range map[string]string{
		`{"objects": [` + good + "," + object("[x") + "," + object("[y") + `]}`: "too many bad lines",
		`{"objects": [` + good: "unexpected EOF",
		`{"objects": [` + good + `, {"type": "indicator", "valid_until": "soon"}, {"type": 1}, {"name": 1}]}`: "too many bad lines",
		`[1]`:             `a bundle of STIX: "[" instead of "{"`,
		`"x"`:             `"x" instead of "{"`,
		`{"objects": {}}`: `"{" instead of "["`,
		`{"objects": [` + strings.Repeat(`[`, 20_000): "exceeded max depth",
	} {
		put(text)
		if o := first(); o.Result != Failed || !strings.Contains(o.Err.Error(), wrong) {
			t.Errorf("%.100s: %v, %v", text, o.Result, o.Err)
		}
		contents("192.0.2.6 192.0.2.7 192.0.2.8 192.0.2.9 192.0.2.10 198.51.100.1")
	}
}

// A host whose clock starts in the past keeps its indicators, none of which is valid yet, until
// the clock is right.
func TestSTIXInThePast(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "bundle.json")
	must.Write(t, file, `{"objects": [{"type": "indicator", "pattern": "[ipv4-addr:value = '192.0.2.1']", "valid_from": "2020-01-01T00:00:00Z"}]}`)
	c := named("iocs", Format{Kind: STIX}, Source{Directory: Path(dir)})
	f := mustOpen(t, c, state)
	want(t, f, fetch(t, f), New, NoFailure, "192.0.2.1")
	began := time.Now().Round(0)
	refused := func(t *testing.T, f *Feed, entries, reason string) {
		t.Helper()
		o := fetch(t, f)
		want(t, f, o, Failed, Refused, entries)
		if o.Err != nil && !strings.Contains(o.Err.Error(), reason) {
			t.Error(o.Err)
		}
	}
	synctest.Test(t, func(t *testing.T) { // in the year 2000
		refused(t, mustOpen(t, c, t.TempDir()), "", "bundle.json was changed at 20")
		f := mustOpen(t, c, state)
		refused(t, f, "192.0.2.1", "was last read at 20")
		if err := os.Chtimes(file, backThen, time.Now().Add(clockSlack)); err != nil {
			t.Fatal(err)
		}
		refused(t, f, "192.0.2.1", "was last read at 20")
		g := mustOpen(t, c, "")
		want(t, g, fetch(t, g), Failed, Empty, "") // it is read, within the slack
		time.Sleep(time.Until(began))
		want(t, f, fetch(t, f), Unchanged, NoFailure, "192.0.2.1")
	})

	// What was read by a clock in the future can be accepted, once.
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(began.Add(365 * 24 * time.Hour)))
		f := mustOpen(t, c, state)
		must.Write(t, file, `{"objects": [{"type": "indicator", "pattern": "[ipv4-addr:value = '192.0.2.2']"}]}`)
		if o, err := f.Accept(t.Context()); err != nil || o[0].Result != New {
			t.Errorf("%+v, %v", o, err)
		}
	})
	f = mustOpen(t, c, state)
	refused(t, f, "192.0.2.2", "was last read at 20")
	if _, err := f.Accept(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		want(t, f, fetch(t, f), Unchanged, NoFailure, "192.0.2.2")
		f = mustOpen(t, c, state)
	}
}

// A clock in the future ends no more indicators than a source may lose, and contents that
// were read by it are read again when the clock is right.
func TestSTIXInTheFuture(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "bundle.json")
	began := time.Now().Round(0)
	soon := began.Add(30 * 24 * time.Hour).Format(time.RFC3339)
	put := func(until ...string) { // of 192.0.2.1 and so on
		var all []string
		for i, u := range until {
			o := fmt.Sprintf(`{"type": "indicator", "pattern": "[ipv4-addr:value = '192.0.2.%d']", "valid_from": "2020-01-01T00:00:00Z"`, i+1)
			if u != "" {
				o += fmt.Sprintf(`, "valid_until": %q`, u)
			}
			all = append(all, o+"}")
		}
		must.Write(t, file, `{"objects": [`+strings.Join(all, ",")+`]}`)
	}
	c := named("iocs", Format{Kind: STIX}, Source{File: Path(file)})
	const three = "192.0.2.1 192.0.2.2 192.0.2.3"
	future := func(test func(*testing.T, *Feed)) {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(began.Add(365 * 24 * time.Hour)))
			test(t, mustOpen(t, c, state))
		})
	}
	reset := func(until ...string) {
		t.Helper()
		put(until...)
		if _, err := mustOpen(t, c, state).Accept(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for kind, until := range map[Failure][]string{Shrunk: {soon, soon, ""}, Empty: {soon, soon, soon}} {
		reset(until...)
		future(func(t *testing.T, f *Feed) {
			o := fetch(t, f)
			want(t, f, o, Failed, kind, three)
			if o.Err == nil || !strings.Contains(o.Err.Error(), "refresh --accept") {
				t.Error(o.Err)
			}
			f, o = loaded(t, c, state)
			want(t, f, o, Loaded, NoFailure, three)
		})
		f := mustOpen(t, c, state)
		want(t, f, fetch(t, f), Unchanged, NoFailure, three)
	}

	// The operator may remove them, and accept that they are not valid any more.
	reset(soon, soon, "")
	future(func(t *testing.T, f *Feed) {
		put(soon)
		want(t, f, fetch(t, f), New, NoFailure, "")
	})
	reset(soon, soon, "")
	future(func(t *testing.T, f *Feed) {
		if o, err := f.Accept(t.Context()); err != nil || o[0].Entries != 1 {
			t.Errorf("%+v, %v", o, err)
		}
	})

	// The indicators show that the clock is right now.
	f := mustOpen(t, c, state)
	if err := os.Chtimes(file, began, began.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	want(t, f, fetch(t, f), New, NoFailure, three)
	f = mustOpen(t, c, state)
	if f.Status().Sources[0].Read.After(time.Now()) {
		t.Error("the time of the reading is still in the future")
	}
	g := mustOpen(t, c, "")
	want(t, g, fetch(t, g), New, NoFailure, three)

	// Entries of the configuration have no times.
	c.Entries = []string{"198.51.100.0"}
	read := func(t *testing.T, f *Feed) {
		if o, err := f.Fetch(t.Context()); err != nil || o[1].Result != New {
			t.Errorf("%+v, %v", o, err)
		}
	}
	read(t, mustOpen(t, c, state))
	c.Entries = []string{"198.51.100.1"}
	future(read)
	c.Entries = []string{"198.51.100.2"}
	read(t, mustOpen(t, c, state))
}

// taxii serves pages of a collection.
type taxii struct {
	pages map[string]string // by next
	added string            // the date of the last object on each page
	asked []string
}

func (s *taxii) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	s.asked = append(s.asked, q.URL.String())
	_, password, _ := q.BasicAuth()
	if q.Header.Get("Accept") != taxiiType || password != "S3CRET" && q.Header.Get("Authorization") != "Token S3CRET" {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	w.Header().Set("Content-Type", taxiiType)
	w.Header().Set("X-TAXII-Date-Added-Last", s.added)
	next := q.URL.Query().Get("next")
	if next == "" {
		next = q.URL.Query().Get("added_after")
	}
	page, ok := s.pages[next]
	if !ok {
		page = fmt.Sprintf(`{"more": true, "next": "%d", "objects": []}`, len(s.asked))
	}
	fmt.Fprint(w, page)
}

// All pages of a collection are read, or none.
func TestTAXII(t *testing.T) {
	indicator := func(address string) string {
		return fmt.Sprintf(`{"type": "indicator", "pattern": "[ipv4-addr:value = '%s']"}`, address)
	}
	s := &taxii{pages: map[string]string{
		"":  `{"more": true, "next": "b", "objects": [` + indicator("192.0.2.1") + `]}`,
		"b": `{"more": true, "next": "c", "objects": [` + indicator("192.0.2.2") + "," + indicator("192.0.2.3") + `]}`,
		"c": `{"objects": [` + indicator("192.0.2.4") + `]}`,
	}}
	server := serve(t, s.ServeHTTP)
	source := Source{URL: URL(server.URL + "/api/collections/1/"), MaxBytes: 64 << 10, Headers: map[string]string{"Authorization": "Token S3CRET"}}
	f := mustOpen(t, named("iocs", Format{Kind: TAXII}, source), t.TempDir())
	want(t, f, fetch(t, f), New, NoFailure, "192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4")
	const path = "/api/collections/1/objects/?match%5Btype%5D=indicator"
	if !slices.Equal(s.asked, []string{path, path + "&next=b", path + "&next=c"}) {
		t.Errorf("asked for %q", s.asked)
	}
	want(t, f, fetch(t, f), Unchanged, NoFailure, "192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4")

	// Its own filters, a password, and a server without cursors.
	s.pages, s.added, s.asked = map[string]string{
		"2020-01-01T00:00:00Z": `{"more": true, "objects": [` + indicator("192.0.2.1") + `]}`,
		"2026-01-01T00:00:00Z": `{"more": false, "objects": [` + indicator("192.0.2.5") + `]}`,
	}, "2026-01-01T00:00:00Z", nil
	source.Headers, source.URL = nil, URL(strings.Replace(server.URL, "//", "//user:S3CRET@", 1)+"/c/objects?added_after=2020-01-01T00:00:00Z")
	g := mustOpen(t, named("iocs", Format{Kind: TAXII}, source), t.TempDir())
	want(t, g, fetch(t, g), New, NoFailure, "192.0.2.1 192.0.2.5")

	// A page that fails, or that never ends, leaves what was.
	const before = "192.0.2.1 192.0.2.5"
	for what, c := range map[string]struct {
		pages map[string]string
		kind  Failure
	}{
		"the same page again": {map[string]string{"2020-01-01T00:00:00Z": `{"more": true, "next": "x"}`, "x": `{"more": true, "next": "x"}`}, Garbage},
		"no JSON":             {map[string]string{"2020-01-01T00:00:00Z": `{"more": true, "next": "x", "objects": []}`, "x": `{`}, Garbage},
		"too many bytes":      {map[string]string{"2020-01-01T00:00:00Z": `{"x": "` + strings.Repeat("x", 65<<10) + `"}`}, TooLarge},
		"endless":             {nil, TooLarge},
	} {
		if s.pages, s.asked = c.pages, nil; c.pages == nil {
			s.pages = map[string]string{"2020-01-01T00:00:00Z": `{"more": true, "next": "0", "objects": []}`}
		}
		if o := fetch(t, g); o.Result != Failed || o.Failure != c.kind || strings.Contains(fmt.Sprint(o.Err), "S3CRET") {
			t.Errorf("%s: %v, %v, after %d pages", what, o.Failure, o.Err, len(s.asked))
		}
		if got := strings.Join(textsOf(g.Contents()), " "); got != before {
			t.Errorf("%s: %s", what, got)
		}
	}

	// All pages together have the time of one answer.
	source.Timeout, source.MaxBytes = quantity.Duration(500*time.Millisecond), 1<<30
	server.now(func(w http.ResponseWriter, q *http.Request) { time.Sleep(50 * time.Millisecond); s.ServeHTTP(w, q) })
	s.pages = map[string]string{"2020-01-01T00:00:00Z": `{"more": true, "next": "0", "objects": []}`}
	slow := mustOpen(t, named("iocs", Format{Kind: TAXII}, source), "")
	if o := fetch(t, slow); o.Failure != TimedOut {
		t.Errorf("%v", o.Err)
	}
	server.now(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "192.0.2.1\n") })
	if o := fetch(t, slow); o.Failure != Garbage {
		t.Errorf("no TAXII: %v", o.Err)
	}
	if err := (Source{File: "/x"}).validate(TAXII); err == nil {
		t.Error("a file is a collection")
	}
}
