package history

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"weir/tests/must"
)

var noon = time.Date(2026, 1, 10, 12, 0, 0, 0, time.UTC)

// buffer is a log.
type buffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

func openAt(t *testing.T, path string, now time.Time) (*Recorder, *buffer) {
	t.Helper()
	log := new(buffer)
	h := Open(path, now, slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h, log
}

// second returns the counts of one second of traffic.
func second() Sample {
	return Sample{
		Interval: time.Second,
		Reasons:  []Reason{{"clean", false, Count{10, 1000}}, {"blocked", true, Count{3, 180}}},
		Lists:    []List{{Name: "feed", Count: Count{2, 120}}, {Name: "manual", Count: Count{1, 60}}},
	}
}

// settle waits until nothing waits to be written.
func settle(t *testing.T, h *Recorder) {
	t.Helper()
	for range 1000 {
		h.mu.Lock()
		waiting := len(h.waiting)
		h.mu.Unlock()
		h.disk.Lock()
		h.disk.Unlock() //nolint:staticcheck // waits for a record that is being written
		if waiting == 0 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("records are not written")
}

// feed adds seconds, and lets the disk keep up.
func feed(t *testing.T, h *Recorder, from time.Time, seconds int) (to time.Time) {
	t.Helper()
	for n := range seconds {
		h.Add(from.Add(time.Duration(n+1)*time.Second), second())
		if n%200 == 199 {
			settle(t, h)
		}
	}
	settle(t, h)
	return from.Add(time.Duration(seconds) * time.Second)
}

func packets(all []Record) (passed, dropped, feed uint64) {
	sum := Sum(all)
	for _, l := range sum.Lists {
		if l.Name == "feed" {
			feed = l.Packets
		}
	}
	return sum.Passed().Packets, sum.Dropped().Packets, feed
}

func want(t *testing.T, what string, all []Record, seconds int) {
	t.Helper()
	passed, dropped, feed := packets(all)
	if n := uint64(seconds); passed != 10*n || dropped != 3*n || feed != 2*n || Sum(all).Covered != time.Duration(seconds)*time.Second {
		t.Errorf("%s: %d passed, %d dropped, %d by the feed, in %v: want those of %d s", what, passed, dropped, feed, Sum(all).Covered, seconds)
	}
}

func TestHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	h, _ := openAt(t, path, noon)
	now := feed(t, h, noon, 3725)
	all := h.Since(noon, now, Fine)
	want(t, "all", all, 3725)
	if len(all) != 373 || !all[0].Begin.Equal(noon) || all[0].Covered != Fine || all[372].Covered != 5*time.Second {
		t.Errorf("%d records, from %v", len(all), all[0].Begin)
	}
	want(t, "the last minute", h.Since(now.Add(-65*time.Second), now, time.Minute), 65)
	if all := h.Since(noon, now, time.Hour); len(all) != 2 || all[0].Covered != time.Hour {
		t.Errorf("by the hour: %+v", all)
	}
	if all := h.Since(now, now.Add(-time.Minute), Fine); len(all) != 0 {
		t.Errorf("of no time: %+v", all)
	}

	// Another daemon continues, in the same step.
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	h, log := openAt(t, path, now)
	want(t, "opened again", h.Since(noon, now, Fine), 3725)
	now = feed(t, h, now, 100)
	want(t, "continued", h.Since(noon, now, Fine), 3825)
	if c := h.Counts(); c != (Counts{}) || log.String() != "" {
		t.Errorf("%+v\n%s", c, log)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != Size || Size > 50_000_000 || info.Mode() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	} else if used := info.Sys().(*syscall.Stat_t).Blocks * 512; used > 4<<20 {
		t.Errorf("an hour takes %d bytes on disk", used)
	}
}

// Beyond a day, the history is coarser; beyond 30 days, it ends. The file stays as it
// is.
// TestSinceWithinCoarse checks that a window that begins within a quarter of an hour counts
// its packets once, whether the coarse record of that quarter is written or not.
func TestSinceWithinCoarse(t *testing.T) {
	h, _ := openAt(t, filepath.Join(t.TempDir(), "history"), noon)
	const seconds = 2 * 3600
	now := feed(t, h, noon, seconds)
	for back := 10; back <= seconds; back += 170 {
		since := time.Duration(back) * time.Second
		want(t, "the last "+since.String(), h.Since(now.Add(-since), now, Fine), back)
		want(t, "the last "+since.String()+" by the hour", h.Since(now.Add(-since), now, time.Hour), back)
	}
}

func TestOldHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	h, _ := openAt(t, path, noon)
	now := feed(t, h, noon, 3600)
	for range 3 { // an hour every eleven days
		now = feed(t, h, now.Add(11*24*time.Hour), 3600)
	}
	want(t, "a month", h.Since(now.Add(-KeepCoarse), now, time.Hour), 3*3600)
	want(t, "all time", h.Since(noon, now, time.Hour), 3*3600)
	for _, r := range h.Since(now.Add(-KeepCoarse), now, Fine) {
		if r.Begin.Truncate(Coarse) != r.Begin || r.Covered > Coarse {
			t.Fatalf("%v for %v", r.Begin, r.Covered)
		}
	}
	want(t, "a day", h.Since(now.Add(-KeepFine), now, Fine), 3600)
	if info, err := os.Stat(path); err != nil || info.Size() != Size {
		t.Errorf("the file: %v, %v", info, err)
	}
}

// What a daemon has not come to add up before it was killed, the next one does.
func TestKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	h, _ := openAt(t, path, noon)
	now := feed(t, h, noon, 890)
	h.mu.Lock()
	h.current = Record{} // as if it were killed now
	h.mu.Unlock()
	later := now.Add(20 * 24 * time.Hour)
	h, _ = openAt(t, path, later)
	want(t, "after weeks", h.Since(noon, later, Coarse), 880)

	// Also one that is there again at once, and has nothing to count for weeks.
	path = filepath.Join(t.TempDir(), "history")
	h, _ = openAt(t, path, noon)
	now = feed(t, h, noon, 300)
	h.mu.Lock()
	h.current = Record{}
	h.mu.Unlock()
	h, _ = openAt(t, path, now)
	now = feed(t, h, later, 20)
	want(t, "in the same interval", h.Since(noon, now, Coarse), 310)
}

// No file, however damaged, stops the recorder. What is whole in it is found.
func TestDamage(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "history")
	h, _ := openAt(t, whole, noon)
	now := feed(t, h, noon, 100)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	text := must.Read(t, whole)
	first := fine.at(noon)
	for _, c := range []struct {
		name    string
		spoil   func(b []byte) []byte
		seconds int // that are left
		damaged uint64
	}{
		{"whole", func(b []byte) []byte { return b }, 100, 0},
		{"empty", func([]byte) []byte { return nil }, 0, 0},
		{"cut off", func(b []byte) []byte { return b[:first+3*slotLen+20] }, 30, 1},
		{"too long", func(b []byte) []byte { return append(b, make([]byte, 1<<20)...) }, 100, 0},
		{"a bit", func(b []byte) []byte { b[first+40] ^= 1; return b }, 90, 1},
		{"a torn record", func(b []byte) []byte { clear(b[first+50 : first+slotLen]); return b }, 90, 1},
		{"a length", func(b []byte) []byte { b[first+15] = 0xff; return b }, 90, 1},
		{"another version", func(b []byte) []byte {
			slot := b[first : first+slotLen]
			slot[11]++
			binary.LittleEndian.PutUint64(slot, xxhash.Sum64(slot[8:binary.LittleEndian.Uint32(slot[12:])]))
			return b
		}, 90, 1},
		{"a record in another's slot", func(b []byte) []byte { copy(b[first+slotLen:], b[first:first+slotLen]); return b }, 90, 0},
		{"rubbish", func(b []byte) []byte { return bytes.Repeat([]byte("no history\n"), len(b)/11) }, 0, uint64(Size / slotLen)},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "history")
			must.Write(t, path, c.spoil(bytes.Clone(text)))
			h, log := openAt(t, path, now)
			want(t, "opened", h.Since(noon, now, Fine), c.seconds)
			if got := h.Counts().Damaged; got != c.damaged || c.damaged > 0 != strings.Contains(log.String(), "damaged") {
				t.Errorf("%d slots are damaged, want %d\n%s", got, c.damaged, log)
			}
			now := feed(t, h, now, 50)
			want(t, "continued", h.Since(noon, now, Fine), c.seconds+50)
		})
	}
}

// A path at which there can be no file leaves the history in memory.
func TestNoFile(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/dev/zero", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", dir, pipe, link, filepath.Join(dir, "missing", "history")} {
		h, log := openAt(t, path, noon)
		if strings.Contains(log.String(), "in memory only") != (path != "") {
			t.Errorf("%q: %s", path, log)
		}
		now := feed(t, h, noon, 1000)
		want(t, path, h.Since(noon, now, Fine), 1000)
	}
}

// What cannot be written stays in memory, and the log says so once.
func TestWriteFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	h, log := openAt(t, path, noon)
	now := feed(t, h, noon, 60)
	h.disk.Lock()
	writable := h.file
	readOnly, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	h.file = readOnly
	h.disk.Unlock()
	now = feed(t, h, now, 60)
	want(t, "failing", h.Since(noon, now, Fine), 120)
	if c := h.Counts(); c.Errors < 5 || strings.Count(log.String(), "could not be written") != 1 {
		t.Errorf("%+v\n%s", c, log)
	}
	h.disk.Lock()
	h.file = writable
	h.disk.Unlock()
	readOnly.Close()
	now = feed(t, h, now, 60)
	want(t, "mended", h.Since(noon, now, Fine), 180)
	if !strings.Contains(log.String(), "written again") {
		t.Error(log)
	}
}

// A disk that hangs costs records, and neither time nor memory without bound.
func TestSlowDisk(t *testing.T) {
	h, _ := openAt(t, filepath.Join(t.TempDir(), "history"), noon)
	now := feed(t, h, noon, 10)
	h.disk.Lock() // as a write does that hangs
	for n := range 3600 {
		h.Add(now.Add(time.Duration(n+1)*time.Second), second())
	}
	if c := h.Counts(); c.Lost == 0 || len(h.waiting) > maxWaiting {
		t.Errorf("%+v, %d wait", c, len(h.waiting))
	}
	h.disk.Unlock()
	settle(t, h)
	if got := len(h.Since(noon, now.Add(time.Hour), Fine)); got < maxWaiting || got > maxWaiting+5 {
		t.Errorf("%d records", got)
	}
}

// A clock that is set back loses nothing that it does not overwrite.
func TestClockSetBack(t *testing.T) {
	h, _ := openAt(t, "", noon)
	feed(t, h, noon, 100)
	feed(t, h, noon.Add(20*time.Second), 30)
	want(t, "twice", h.Since(noon, noon.Add(time.Hour), Fine), 130)
}

func TestManyLists(t *testing.T) {
	h, _ := openAt(t, filepath.Join(t.TempDir(), "history"), noon)
	s := Sample{Interval: time.Second}
	for n := range 20 {
		s.Reasons = append(s.Reasons, Reason{fmt.Sprintf("reason-%08d", n), n%2 == 0, Count{1 << 60, 1 << 60}})
	}
	var all uint64
	for n := range 1000 {
		c := Count{uint64(1 + n), 1 << 62}
		all += c.Packets
		s.Lists = append(s.Lists, List{Name: fmt.Sprintf("%064d", n), Count: c})
	}
	h.Add(noon.Add(time.Second), s)
	h.Add(noon.Add(11*time.Second), Sample{Interval: time.Second})
	settle(t, h)
	for _, r := range h.Since(noon, noon.Add(Fine-1), Fine) {
		sum := r.Other.Packets
		for _, l := range r.Lists {
			sum += l.Packets
		}
		if len(r.Reasons) != 20 || len(r.Lists) != MaxLists || r.Lists[0].Packets != 1000 || sum != all {
			t.Errorf("%d reasons, %d lists, %d packets: want %d", len(r.Reasons), len(r.Lists), sum, all)
		}
	}
}

// What lists were worth is kept behind the record, for steps of both lengths and another daemon: sums of packets,
// and the most addresses. Earlier versions, which read the record alone, find it whole.
func TestWorth(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	h, _ := openAt(t, path, noon)
	now := noon
	for n := range 1000 {
		s := second()
		s.Lists = append(s.Lists, List{Name: "feed", Conversed: 3 + n/500}, List{Name: "quiet", Conversed: 7})
		if n%600 == 0 {
			s.Lists = append(s.Lists, List{Name: "feed", Alone: 50})
		}
		if h.Add(now.Add(time.Second), s); n%200 == 199 {
			settle(t, h)
		}
		now = now.Add(time.Second)
	}
	check := func(what string, all []Record, alone uint64, conversed int) {
		t.Helper()
		sum := Sum(all)
		want := []List{{"feed", Count{2000, 120_000}, alone, conversed}, {"manual", Count{1000, 60_000}, 0, 0}, {Name: "quiet", Conversed: 7}}
		if !slices.Equal(sum.Lists, want) {
			t.Errorf("%s: %+v, want %+v", what, sum.Lists, want)
		}
	}
	check("all", h.Since(noon, now, Fine), 100, 4)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	h, log := openAt(t, path, now)
	check("opened again", h.Since(noon, now, Fine), 100, 4)
	later := now.Add(11*24*time.Hour + time.Hour) // in other slots
	h.Add(later, Sample{Interval: time.Second})
	settle(t, h)
	h.Add(later.Add(Fine), Sample{Interval: time.Second})
	settle(t, h)
	check("after days", h.Since(noon, later, Coarse), 100, 4)
	if log.String() != "" {
		t.Error(log)
	}

	slot := encode(Sum(h.Since(noon, now, Coarse)))
	_, record, ok := beginOf(slot)
	if !ok || len(record) == len(slot) {
		t.Fatalf("a record of %d bytes in a slot of %d", len(record), len(slot))
	}
	names := make(map[string]string)
	r, err := decode(slot, names)
	if err != nil {
		t.Fatal(err)
	}
	packets := r.Lists[0].Packets
	for at := len(record); at <= len(slot); at++ { // torn, and with a bit that is wrong
		torn := slices.Clone(slot[:at])
		r, err := decode(torn, names)
		if whole := at == len(slot); err != nil || len(r.Lists) != 3 || (r.Lists[0].Alone == 100) != whole || (r.Lists[0].Conversed == 4) != whole {
			t.Errorf("%d of %d bytes: %+v, %v", at, len(slot), r.Lists, err)
		}
		if at < len(slot) {
			torn = slices.Clone(slot)
			torn[at] ^= 4
			if r, err := decode(torn, names); err != nil || r.Lists[0].Alone != 0 || r.Lists[0].Packets != packets {
				t.Errorf("byte %d: %+v, %v", at, r.Lists, err)
			}
		}
	}
	// It belongs to its record alone.
	other := Record{Begin: noon, Lists: []List{{Name: "feed", Count: Count{2000, 120_001}}, {"manual", Count{1000, 60_000}, 0, 0}, {Name: "quiet"}}}
	mixed := append(encode(other), slot[len(record):]...)
	if r, err := decode(mixed, names); err != nil || r.Lists[0].Alone != 0 {
		t.Errorf("that of another record: %+v, %v", r.Lists, err)
	}
	// The longest names leave room for it.
	var most Record
	for n := range MaxLists {
		most.Lists = append(most.Lists, List{fmt.Sprintf("%0200d", n), Count{1 << 62, 1 << 62}, 1 << 63, math.MaxInt32})
	}
	slot = encode(most)
	r, err = decode(slot, names)
	if err != nil || len(slot) > slotLen || len(r.Lists) < 10 || r.Lists[0].Alone != 1<<63 || r.Lists[len(r.Lists)-1].Conversed != math.MaxInt32 {
		t.Errorf("%d bytes: %d lists, %v", len(slot), len(r.Lists), err)
	}
}

// What a list alone dropped, which is noted once, is kept before conversations, which are noted
// again and again.
func TestAloneIsKept(t *testing.T) {
	var r Record
	for n := range MaxLists {
		r.Lists = append(r.Lists, List{Name: fmt.Sprint(n), Conversed: 1})
	}
	r.Lists = append(r.Lists, List{Name: "z", Alone: 5})
	r, err := decode(encode(r), make(map[string]string))
	if err != nil || len(r.Lists) != MaxLists || r.Lists[0].Name != "z" || r.Lists[0].Alone != 5 {
		t.Errorf("%+v, %v", r.Lists, err)
	}
}

// One list of several that has any worth is enough for it to be noted.
func TestWorthOfOne(t *testing.T) {
	for _, of := range []List{{Name: "a", Alone: 5}, {Name: "a", Conversed: 5}, {Name: "c", Alone: 5}, {Name: "c", Conversed: 5}} {
		r, err := decode(encode(Record{Lists: []List{of, {Name: "b", Count: Count{1, 60}}, {Name: "z"}}}), make(map[string]string))
		if err != nil || !slices.Contains(r.Lists, of) {
			t.Errorf("%+v, %v, want %+v", r.Lists, err, of)
		}
	}
}

// A step is the interval of the records that Since returns, and no shorter than asked for.
func TestStepOf(t *testing.T) {
	for _, c := range []struct{ since, step, want time.Duration }{
		{time.Hour, 0, Fine},
		{time.Hour, 25 * time.Second, 30 * time.Second},
		{time.Hour, 30 * time.Second, 30 * time.Second},
		{KeepFine, time.Minute, time.Minute},
		{KeepFine + time.Second, time.Minute, Coarse},
		{30 * 24 * time.Hour, 20 * time.Minute, 2 * Coarse},
	} {
		if got := StepOf(c.since, c.step); got != c.want {
			t.Errorf("StepOf(%v, %v) = %v, want %v", c.since, c.step, got, c.want)
		}
	}
	h, _ := openAt(t, filepath.Join(t.TempDir(), "history"), noon)
	now := feed(t, h, noon, 120)
	all := h.Since(noon, now, 25*time.Second)
	if len(all) != 4 {
		t.Errorf("%d records", len(all))
	}
	for i, r := range all {
		if i > 0 && r.Begin.Sub(all[i-1].Begin) != StepOf(now.Sub(noon), 25*time.Second) {
			t.Errorf("records of %v and %v", all[i-1].Begin, r.Begin)
		}
	}
}

func FuzzDecode(f *testing.F) {
	r := Record{Begin: noon.Truncate(Fine).Local(), Covered: Fine, Reasons: []Reason{{"a", false, Count{1, 2}}, {"a", true, Count{3, 4}}}, Lists: []List{{"feed", Count{5, 6}, 7, 8}}, Other: Count{7, 8}}
	f.Add(encode(r))
	f.Add(encode(Record{Begin: noon}))
	f.Fuzz(func(t *testing.T, slot []byte) {
		r, err := decode(slot, make(map[string]string))
		if err != nil {
			if !errors.Is(err, errDamaged) {
				t.Error(err)
			}
			return
		}
		if again, err := decode(encode(r), make(map[string]string)); len(r.Lists) <= MaxLists && len(r.Reasons) < 20 && (err != nil || !reflect.DeepEqual(again.Reasons, r.Reasons)) {
			t.Errorf("%+v, %+v, %v", r, again, err)
		}
	})
}
