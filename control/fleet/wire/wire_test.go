package wire

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/snapshot"
)

func keys(t *testing.T) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return public, private
}

func set(t *testing.T, text string) *list.Set {
	t.Helper()
	e, _, err := listfile.Parse("test", strings.NewReader(text), listfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return e.Set()
}

func TestMessages(t *testing.T) {
	public, private := keys(t)
	now := time.Now().UTC().Truncate(time.Second)
	c := Catalog{Place: Place{Epoch: 7, Version: 3}, Term: Term{Issued: now}, MaxAge: 60, Lists: []ListState{
		{Name: "drop", Settings: Settings{Action: "block", Direction: "src"}, Releases: []Release{{Place: Place{Epoch: 7, Version: 1}}, {Groups: []string{"canary"}, Place: Place{Epoch: 7, Version: 2}, Rehearse: true}}},
	}}
	catalog, err := SealCatalog(private, c)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := OpenCatalog(public, catalog); err != nil || !reflect.DeepEqual(got, c) {
		t.Errorf("%+v, %v", got, err)
	}
	add := set(t, "192.0.2.1\n198.51.100.0/24\ntcp *:* > 192.0.2.9:25\n2001:db8::/32\n")
	d := Delta{List: "drop", Epoch: 7, From: 1, To: 2, Sum: snapshot.Of(add.Groups()).String(), Entries: 4, Issued: now,
		Expires: []Expiry{{"192.0.2.1", now}}, Add: add.Groups()}
	delta, err := SealDelta(private, d)
	if err != nil {
		t.Fatal(err)
	}
	got, err := OpenDelta(public, delta)
	if err != nil || !reflect.DeepEqual(got, d) {
		t.Errorf("%+v, %v\nwant %+v", got, err, d)
	}
	if change, err := got.Set(); err != nil || change.Add.Diff(add).Len() != 0 || change.Remove.Len() != 0 {
		t.Errorf("%+v, %v", change, err)
	}
	chunks, head, err := SealSnapshot(private, Head{List: "drop", Place: Place{Epoch: 7, Version: 2}, Issued: now}, add.Groups(), d.Expires)
	if err != nil || len(chunks) != 1 {
		t.Fatalf("%d chunks, %v", len(chunks), err)
	}
	h, err := OpenHead(public, head)
	if err != nil || h.Chunks() != 1 || h.Entries != add.Len() {
		t.Fatalf("%+v, %v", h, err)
	}
	if got, expires, err := OpenSnapshot(h, chunks[0]); err != nil || got.Diff(add).Len() != 0 || !reflect.DeepEqual(expires, d.Expires) {
		t.Errorf("%v, %v", expires, err)
	}

	// What is changed, cut, of another kind or signed by somebody else is refused.
	others, other := keys(t)
	for _, message := range [][]byte{catalog, delta, head} {
		for i := range message {
			forged := append([]byte(nil), message...)
			forged[i] ^= 1
			for _, m := range [][]byte{forged, message[:i]} {
				if _, err := OpenCatalog(public, m); err == nil {
					t.Fatalf("a catalog changed at byte %d", i)
				}
				if _, err := OpenDelta(public, m); err == nil {
					t.Fatalf("a delta changed at byte %d", i)
				}
				if _, err := OpenHead(public, m); err == nil {
					t.Fatalf("a head changed at byte %d", i)
				}
			}
		}
	}
	if _, err := OpenCatalog(public, head); !errors.Is(err, ErrForged) {
		t.Errorf("a head passes for a catalog: %v", err)
	}
	if _, err := OpenDelta(others, delta); !errors.Is(err, ErrForged) {
		t.Errorf("another key: %v", err)
	}
	foreign, _ := SealHead(other, h)
	if _, err := OpenHead(public, foreign); !errors.Is(err, ErrForged) {
		t.Errorf("signed by another: %v", err)
	}
	if _, _, err := OpenSnapshot(h, append(chunks[0], 0)); !errors.Is(err, ErrForged) {
		t.Errorf("a longer snapshot: %v", err)
	}
}

func TestListOfDelta(t *testing.T) {
	for _, name := range []string{"drop", "a.b", "ü", ""} {
		if got, ok := ListOfDelta(DeltaSubject(name)); !ok || got != name {
			t.Errorf("%q: %q, %v", name, got, ok)
		}
	}
	for _, subject := range []string{"", CatalogSubject(), HeadSubject("drop"), DeltasSubject(), DownPrefix + DeltaSubject("drop")} {
		if got, ok := ListOfDelta(subject); ok {
			t.Errorf("%s: %q", subject, got)
		}
	}
}

func TestPlaceOfChunk(t *testing.T) {
	for _, name := range []string{"drop", "a.b", "ü"} {
		want := Place{Epoch: 7, Version: 312}
		if got, ok := PlaceOfChunk(ChunkSubject(name, 7, 312, 4)); !ok || got != want {
			t.Errorf("%q: %v, %v", name, got, ok)
		}
	}
	for _, subject := range []string{"", CatalogSubject(), HeadSubject("drop"), ChunksOf("drop"), ChunkSubject("drop", 7, 312, 4) + ".5", DownPrefix + ChunkSubject("drop", 7, 312, 4), strings.Replace(ChunkSubject("drop", 7, 312, 4), "312", "x", 1)} {
		if got, ok := PlaceOfChunk(subject); ok {
			t.Errorf("%s: %v", subject, got)
		}
	}
}

func TestStatus(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Second)
	want := Status{Time: now, Version: "1.2.3", Catalog: Place{Epoch: 7, Version: 9}, Passed: 10, Dropped: 3, Lists: []ListStatus{{
		Name: "drop", Active: Place{Epoch: 7, Version: 1}, Sum: "00", Entries: 4, Wanted: Place{Epoch: 7, Version: 2}, Rehearsal: &Rehearsal{Place: Place{Epoch: 7, Version: 2}, Since: now, Looked: 4, Passed: 5, WouldDrop: 1, Top: []Affected{{Source: "192.0.2.1", Packet: "192.0.2.1", Entry: "192.0.2.0/24", Packets: 1}}},
	}}}
	text, err := MarshalStatus(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseStatus(text); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "{", strings.Repeat(" ", MaxStatus) + string(text), `{"lists":[` + strings.Repeat("{},", MaxLists) + `{}]}`} {
		if _, err := ParseStatus([]byte(bad)); err == nil {
			t.Errorf("%.20q is a status", bad)
		}
	}
	want.Version = strings.Repeat("x", MaxStatus)
	if _, err := MarshalStatus(want); err == nil {
		t.Error("a status that no hub takes")
	}
}

// A hub takes the status of a node that has as many lists as it may, however much there is to say
// of each, and hears of each of them which version is active.
func TestLongStatus(t *testing.T) {
	at := Place{Epoch: 1 << 32, Version: 1 << 24}
	text := strings.Repeat("é", 100)
	conversed := &Conversed{Addresses: 1 << 20, Latest: []string{"2001:db8::1", "2001:db8::2", "2001:db8::3"}}
	long := Status{Time: time.Now(), Version: "1.0.0", Catalog: at, Seal: text, Problems: []string{text}}
	for i := range MaxLists {
		long.Lists = append(long.Lists, ListStatus{
			Name: fmt.Sprintf("%064d", i), Active: at, ID: text[:22], Seal: text, Sum: strings.Repeat("0", 32), Entries: 10_000_000,
			Wanted: at, Refused: true, Error: text, Conversed: conversed, Added: conversed,
			Rehearsal: &Rehearsal{
				Place: at, Since: time.Now(), Looked: 1 << 40, Passed: 1 << 40, WouldDrop: 1 << 40, Error: text, Conversed: conversed,
				Top: slices.Repeat([]Affected{{Source: "2001:db8::1", Packet: text, Entry: text, Packets: 1 << 40}}, MaxTop),
			},
		})
	}
	rehearsal := *long.Lists[0].Rehearsal
	for n := 1; n <= MaxLists; n += 3 {
		s := long
		s.Lists = long.Lists[:n]
		text, err := MarshalStatus(s)
		if err != nil {
			t.Fatalf("%d lists: %v", n, err)
		}
		got, err := ParseStatus(text)
		if err != nil || len(got.Lists) != n || got.Lists[n-1].Active != at || got.Lists[n-1].Sum != long.Lists[n-1].Sum {
			t.Fatalf("%d lists: %v", n, err)
		}
		said := len(got.Problems) == 2 && strings.Contains(got.Problems[1], "shortened")
		if whole, err := json.Marshal(s); err != nil || said != (len(whole) > MaxStatus) {
			t.Errorf("%d lists, %d bytes: problems %q, %v", n, len(whole), got.Problems, err)
		}
	}
	if !reflect.DeepEqual(*long.Lists[0].Rehearsal, rehearsal) || long.Lists[0].Seal == "" || len(long.Problems) != 1 {
		t.Error("the status itself is shortened")
	}
}

func FuzzOpenDelta(f *testing.F) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		f.Fatal(err)
	}
	m, _ := SealDelta(private, Delta{List: "a", To: 1})
	f.Add(m[ed25519.SignatureSize:])
	f.Fuzz(func(t *testing.T, text []byte) { // as a hub with a fault would sign it
		d, err := OpenDelta(public, seal(private, kindDelta, text))
		if err == nil {
			_, _ = d.Set()
		}
	})
}

// A node has the last release of its groups, and rehearses only what comes after that.
func TestFor(t *testing.T) {
	l := ListState{Releases: []Release{
		{Place: Place{Epoch: 1, Version: 5}},
		{Groups: []string{"canary"}, Place: Place{Epoch: 1, Version: 7}, Rehearse: true},
		{Groups: []string{"early", "node:a"}, Place: Place{Epoch: 1, Version: 6}},
		{Groups: []string{"paris"}, Place: Place{Epoch: 1, Version: 7}, Rehearse: true},
	}}
	for _, c := range []struct {
		groups         []string
		want, rehearse uint64
	}{
		{nil, 5, 0}, {[]string{"rome", "node:b"}, 5, 0}, {[]string{"canary"}, 5, 7}, {[]string{"node:a"}, 6, 0},
		{[]string{"canary", "early"}, 6, 0}, {[]string{"paris", "early"}, 6, 7},
	} {
		want, rehearse, ok := l.For(c.groups)
		if !ok || want.Version != c.want || rehearse.Version != c.rehearse {
			t.Errorf("%v: %v, %v, %v; want %d, %d", c.groups, want, rehearse, ok, c.want, c.rehearse)
		}
	}
	l.Releases = l.Releases[1:2]
	if want, rehearse, ok := l.For([]string{"canary"}); !ok || want != (Place{}) || rehearse.Version != 7 {
		t.Errorf("%v, %v, %v", want, rehearse, ok)
	}
	if _, _, ok := l.For([]string{"rome"}); ok {
		t.Error("a list that is released to others")
	}
}

// Texts of a node are of one line, and change nothing around them; counts that cannot be are
// refused.
func TestStatusIsPrintable(t *testing.T) {
	const bad = "a\u202eb\nc\x1b[2J\u2028d\u0085"
	const clean = "a\ufffdb\ufffdc\ufffd[2J\ufffdd\ufffd"
	s := Status{Version: bad, Problems: []string{bad, "fine: größer"}, Lists: []ListStatus{{Name: bad, Error: bad, Rehearsal: &Rehearsal{Error: bad, Top: []Affected{{Source: bad, Entry: bad}}}}}}
	text, err := MarshalStatus(s)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseStatus(text)
	if err != nil {
		t.Fatal(err)
	}
	l := got.Lists[0]
	for i, have := range []string{got.Version, got.Problems[0], l.Name, l.Error, l.Rehearsal.Error, l.Rehearsal.Top[0].Source, l.Rehearsal.Top[0].Entry} {
		if have != clean {
			t.Errorf("%d: %q", i, have)
		}
	}
	if got.Problems[1] != "fine: größer" {
		t.Errorf("%q", got.Problems[1])
	}
	answer := map[string][]string{bad: {bad}}
	if Printable(&answer); len(answer) != 1 || answer[clean][0] != clean {
		t.Errorf("%q", answer)
	}
	for _, s := range []Status{{Passed: 1<<64 - 1}, {Dropped: 1 << 63}, {Lists: []ListStatus{{Rehearsal: &Rehearsal{Looked: 1 << 61}}}}} {
		text, err := MarshalStatus(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseStatus(text); err == nil || !strings.Contains(err.Error(), "packets") {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
