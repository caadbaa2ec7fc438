package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/filter/key"
	"weir/tests/crash"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/seed"
	"weir/tests/timed"
)

// began is an arbitrary time before that of all entries.
var began = time.UnixMilli(1_700_000_000_000)

// nth returns a distinct entry for each n, with all kinds of keys.
func nth(n int) Entry {
	a4 := netip.AddrFrom4([4]byte{192, byte(n >> 16), byte(n >> 8), byte(n)})
	a6 := netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)})
	flow := key.Tuple{Src: a4, Dst: a4.Next(), Proto: 6, HasPorts: true, SrcPort: uint16(n), DstPort: 443}
	e := Entry{List: "mine", Added: began.Add(time.Duration(n) * time.Second), UID: uint32(n)}
	switch n % 6 {
	case 0:
		e.Key = key.Source(netip.PrefixFrom(a4, 32))
	case 1:
		e.Key, e.Reason = key.Source(netip.PrefixFrom(a6, 128)), "seen in the logs"
	case 2:
		e.Key, e.Allow, e.List = key.Destination(netip.PrefixFrom(a4, 32)), true, "ours"
		e.Client = "operator alice"
	case 3:
		e.Key, _ = key.Shape{Fields: key.FieldProto | key.FieldDstPort, SrcBits: 32, DstBits: 24}.Of(flow)
		e.Expires = e.Added.Add(time.Hour)
	case 4:
		flow.Src, flow.Dst = a6, a6.Next()
		e.Key, _ = key.Shape{Fields: key.FieldV6 | key.FieldProto, SrcBits: 128, DstBits: 128}.Of(flow)
		e.Reason = strings.Repeat("ж", MaxReasonLen/2)
	case 5:
		e.Key, e.List = key.Source(netip.PrefixFrom(a6, 128)), strings.Repeat("x", MaxListLen)
	}
	return e
}

func add(from, to int) []Change {
	var batch []Change
	for n := from; n < to; n++ {
		batch = append(batch, Change{Entry: nth(n)})
	}
	return batch
}

func remove(from, to int) []Change {
	batch := add(from, to)
	for i := range batch {
		batch[i].Remove = true
	}
	return batch
}

// id identifies an entry.
type id struct {
	list string
	key  key.Key
}

// after returns the entries after some changes, computed with a map.
func after(changes []Change) map[id]Entry {
	m := map[id]Entry{}
	for _, c := range changes {
		if c.Remove {
			delete(m, id{c.List, c.Key})
		} else {
			m[id{c.List, c.Key}] = c.Entry
		}
	}
	return m
}

func (j *Journal) contents() map[id]Entry {
	m := map[id]Entry{}
	for e := range j.Entries() {
		m[id{e.List, e.Key}] = e
	}
	return m
}

// check compares a journal's entries with the expected ones.
func check(t *testing.T, j *Journal, want map[id]Entry) {
	t.Helper()
	if got := j.contents(); !maps.Equal(got, want) {
		t.Errorf("%d entries, want %d", len(got), len(want))
		for k, e := range want {
			if got[k] != e {
				t.Errorf("%+v\ninstead of %+v", got[k], e)
				break
			}
		}
	}
	if j.Len() != len(want) {
		t.Errorf("Len is %d of %d", j.Len(), len(want))
	}
}

// open opens a journal, which is closed at the end of the test, and returns it
// with its log.
func open(t testing.TB, path string) (*Journal, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	j, err := Open(path, nil, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j, &log
}

func apply(t testing.TB, j *Journal, batches ...[]Change) {
	t.Helper()
	for _, b := range batches {
		if err := j.Apply(b); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, log := open(t, path)
	again := nth(7)
	again.Reason, again.Expires = "again", began.Add(time.Minute)
	batches := [][]Change{add(0, 20), remove(3, 9), add(5, 7), {{Entry: again}}, remove(100, 101), {}}
	apply(t, j, batches...)
	want := after(slices.Concat(batches...))
	check(t, j, want)
	if e, ok := j.Get(again.List, again.Key); !ok || e != again {
		t.Errorf("Get: %+v, %v", e, ok)
	}
	if e, ok := j.Get("other", again.Key); ok {
		t.Errorf("another list has %+v", e)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.Apply(add(0, 1)); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	j, _ = open(t, path)
	check(t, j, want)
	apply(t, j, remove(0, 20))
	j.Close()
	j, again2 := open(t, path)
	check(t, j, nil)
	if log.Len()+again2.Len() > 0 || j.Lost() != 0 {
		t.Errorf("complaints:\n%s%s", log, again2)
	}
}

// TestTorn truncates a journal at every offset, as a crash may, with nothing or
// zeros after that.
func TestTorn(t *testing.T) {
	crash.WithoutSyncs(t)
	changes := slices.Concat(add(0, 3), remove(1, 2))
	whole, ends := write(t, changes)
	path := filepath.Join(t.TempDir(), "journal")
	for cut := range whole {
		n, _ := slices.BinarySearch(ends, cut+1) // number of complete records
		for _, tail := range [][]byte{nil, make([]byte, len(whole)-cut)} {
			if cut < len(magic) && tail != nil {
				continue // that is no journal
			}
			must.Write(t, path, append(whole[:cut:cut], tail...))
			j, log := open(t, path)
			check(t, j, after(changes[:n]))
			boundary := tail == nil && n > 0 && ends[n-1] == cut
			none := n == 0 // a journal is created together with its first record
			if warned := strings.Contains(log.String(), "torn"); !none && warned == boundary || none != (j.Lost() > 0) {
				t.Fatalf("cut at %d, then %d bytes: lost %d, log: %s", cut, len(tail), j.Lost(), log)
			}
			// It continues from there, with fewer bytes than were cut off.
			apply(t, j, add(12, 13))
			j.Close()
			j, log = open(t, path)
			check(t, j, after(append(changes[:n:n], add(12, 13)...)))
			j.Close()
			if log.Len() > 0 || t.Failed() {
				t.Fatalf("cut at %d, then %d bytes: %s", cut, len(tail), log)
			}
		}
	}
}

// write returns the bytes of a journal of changes, and the ends of its records.
func write(t *testing.T, changes []Change) (whole []byte, ends []int) {
	t.Helper()
	whole = []byte(magic)
	for _, c := range changes {
		var err error
		if whole, err = appendRecord(whole, 0, c); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, len(whole))
	}
	return whole, ends
}

// TestDamage flips each bit of a journal: only the record with that bit is
// lost, and that is logged.
func TestDamage(t *testing.T) {
	long.Seconds(t)
	crash.WithoutSyncs(t)
	changes := slices.Concat(add(0, 3), remove(1, 2))
	whole, ends := write(t, changes)
	path := filepath.Join(t.TempDir(), "journal")
	for bit := range 8 * len(whole) {
		damaged := bytes.Clone(whole)
		damaged[bit/8] ^= 1 << (bit % 8)
		must.Write(t, path, damaged)
		j, log := open(t, path)
		want, begin, said := changes, 0, "journal damaged"
		if bit/8 >= len(magic) {
			n, _ := slices.BinarySearch(ends, bit/8+1)
			want, begin = slices.Delete(slices.Clone(changes), n, n+1), len(magic)
			if n > 0 {
				begin = ends[n-1]
			}
			if n == len(changes)-1 {
				said = "torn"
			}
		}
		check(t, j, after(want))
		if !strings.Contains(log.String(), said) || !strings.Contains(log.String(), fmt.Sprintf(" offset=%d ", begin)) {
			t.Fatalf("bit %d: log: %s", bit, log)
		}
		if (j.Lost() > 0) != (said != "torn") || t.Failed() {
			t.Fatalf("bit %d: lost %d", bit, j.Lost())
		}
		j.Close()

		keptAndMended(t, path, damaged, after(want), said != "torn")
		if t.Failed() {
			t.Fatalf("bit %d", bit)
		}
	}
}

// keptAndMended checks that a file is kept as it was if it was damaged, that [Read] reports it, and
// that what opening it has left is whole: damage is said once.
func keptAndMended(t *testing.T, path string, was []byte, want map[id]Entry, damaged bool) {
	t.Helper()
	kept, err := os.ReadFile(path + ".damaged")
	if damaged && !bytes.Equal(kept, was) || !damaged && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("damaged: %t; %d bytes are kept: %v", damaged, len(kept), err)
	}
	if damaged {
		if all, err := Read(path+".damaged", nil, slog.New(slog.DiscardHandler)); err != nil || all.entries.n != len(want) || all.Damage() == "" {
			t.Errorf("Read what is kept: %+v, %v", all, err)
		}
	}
	if all, err := Read(path, nil, slog.New(slog.DiscardHandler)); err != nil || all.entries.n != len(want) || all.Damage() != "" {
		t.Errorf("Read: %+v, %v", all, err)
	}
	j, log := open(t, path)
	check(t, j, want)
	if j.Lost() != 0 || log.Len() > 0 {
		t.Errorf("opened again: lost %d, %s", j.Lost(), log)
	}
	j.Close()
	if err := os.RemoveAll(path + ".damaged"); err != nil {
		t.Fatal(err)
	}
}

// TestCutEnd cuts a journal, or zeroes its end: what was there when it was last opened is missed, also
// where the cut is between records, unlike what a crash may have torn since.
func TestCutEnd(t *testing.T) {
	crash.WithoutSyncs(t)
	path := filepath.Join(t.TempDir(), "journal")
	j, _ := open(t, path)
	apply(t, j, add(0, 6))
	j.Close()
	j, _ = open(t, path)
	before := must.Read(t, path)
	apply(t, j, add(6, 8))
	j.Close()
	whole := must.Read(t, path)
	for cut := len(magic) + wholeLen; cut < len(whole); cut++ {
		for _, tail := range [][]byte{nil, make([]byte, len(whole)-cut)} {
			left := slices.Concat(whole[:cut], tail)
			must.Write(t, path, left)
			var want []Change
			if _, _, _, err := scan(left, func(c Change) {
				if c.whole == 0 {
					want = append(want, c)
				}
			}); err != nil {
				t.Fatal(err)
			}
			j, log := open(t, path)
			check(t, j, after(want))
			damaged := cut < len(before)
			if (j.Lost() > 0) != damaged || strings.Contains(log.String(), "journal damaged") != damaged || damaged && strings.Contains(log.String(), "torn") {
				t.Errorf("cut at %d of %d, %d: lost %d, %s", cut, len(before), len(whole), j.Lost(), log)
			}
			if damaged && j.Lost() < int64(len(before)-cut) {
				t.Errorf("cut at %d of %d: lost %d", cut, len(before), j.Lost())
			}
			j.Close()
			keptAndMended(t, path, left, after(want), damaged)
			if t.Failed() {
				t.FailNow()
			}
		}
	}
}

// TestDurableDamage opens a damaged journal, and changes it: a crash leaves what was damaged there, or
// in the file that keeps it, and loses nothing else.
func TestDurableDamage(t *testing.T) {
	whole, ends := write(t, add(0, 4))
	whole[ends[0]+3] ^= 1
	left := slices.Delete(add(0, 4), 1, 2)
	crash.Test{
		Begin: ids(after(left)),
		Work: func(t *testing.T, d *crash.Disk) {
			d.Put(t, "journal", whole)
			j, err := Open(filepath.Join(d.Dir, "journal"), nil, slog.New(slog.DiscardHandler))
			if err != nil {
				return // a step has failed
			}
			defer j.Close()
			more := slices.Concat(left, add(6, 7))
			_ = d.Do(func() error { return j.Apply(add(6, 7)) }, ids(after(more)))
		},
		Read: func(t *testing.T, dir string, _ int) (string, error) {
			path := filepath.Join(dir, "journal")
			now, _ := os.ReadFile(path)
			if kept, _ := os.ReadFile(path + ".damaged"); !bytes.Equal(kept, whole) && !bytes.HasPrefix(now, whole) {
				t.Errorf("the damaged file is kept nowhere: %d bytes", len(kept))
			}
			j, _ := open(t, path)
			defer j.Close()
			return ids(j.contents()), nil
		},
	}.Run(t)
}

// TestCut cuts bytes out of a journal, and inserts some: only the records that they
// touch are lost, and the journal goes on from there.
func TestCut(t *testing.T) {
	crash.WithoutSyncs(t)
	changes := add(0, 1000)
	whole, ends := write(t, changes)
	path := filepath.Join(t.TempDir(), "journal")
	for _, c := range []struct{ at, cut, insert int }{
		{ends[500] + 9, 100, 0}, {ends[500] + 9, 1, 0}, {ends[500] + 9, 0, 1}, {ends[300] + 9, 0, 3000}, {ends[300] + 9, 30_013, 0},
		{ends[20] + 9, 70 * 1024, 0}, {ends[0], ends[1] - ends[0], 0}, {ends[997] - 20, 10, 0}, {3, 100, 0}, {ends[500] + 9, 300, 200},
	} {
		damaged := slices.Concat(whole[:c.at], bytes.Repeat([]byte{0xa5}, c.insert), whole[c.at+c.cut:])
		var want []Change
		for i, end := range ends {
			begin := len(magic)
			if i > 0 {
				begin = ends[i-1]
			}
			if end <= c.at || begin >= c.at+c.cut {
				want = append(want, changes[i])
			}
		}
		must.Write(t, path, damaged)
		j, log := open(t, path)
		check(t, j, after(want))
		if !strings.Contains(log.String(), "journal damaged") || strings.Contains(log.String(), "torn") || j.Lost() == 0 {
			t.Errorf("%+v: lost %d, log: %s", c, j.Lost(), log)
		}
		apply(t, j, add(2000, 2010))
		j.Close()
		j, _ = open(t, path)
		check(t, j, after(slices.Concat(want, add(2000, 2010))))
		if err := j.rewrite(); err != nil {
			t.Fatal(err)
		}
		apply(t, j, add(3000, 3010))
		j.Close()
		j, log = open(t, path)
		check(t, j, after(slices.Concat(want, add(2000, 2010), add(3000, 3010))))
		if log.Len() > 0 {
			t.Errorf("%+v: after a rewrite: %s", c, log)
		}
		j.Close()
		if t.Failed() {
			t.Fatalf("%+v", c)
		}
	}
}

// TestEmbedded has a reason, which is free text, contain records. They do not count,
// even where the record around them is damaged.
func TestEmbedded(t *testing.T) {
	evil := Change{Entry: nth(0)}
	evil.Allow = true
	for _, base := range []int64{0, 64, 1 << 12} {
		var reason []byte
		for {
			longer, err := appendRecord(bytes.Clone(reason), base, evil)
			if err != nil {
				t.Fatal(err)
			}
			if len(longer) > MaxReasonLen {
				break
			}
			reason = longer
		}
		carrier := add(7, 8)
		carrier[0].Reason = string(reason)
		whole, ends := write(t, slices.Concat(add(1, 3), carrier, add(10, 40)))
		whole[ends[1]+3] ^= 1
		got := make(map[id]Entry)
		damaged, _, _, err := scan(whole, func(c Change) { got[id{c.List, c.Key}] = c.Entry })
		if err != nil || len(damaged) != 1 || !maps.Equal(got, after(slices.Concat(add(1, 3), add(10, 40)))) {
			t.Errorf("base %d: %d entries, damaged %v, %v", base, len(got), damaged, err)
		}
	}
}

// TestLongTail keeps what is cut off an end that is longer than a torn record.
func TestLongTail(t *testing.T) {
	whole, ends := write(t, add(0, 10))
	path := filepath.Join(t.TempDir(), "journal")
	tail := bytes.Repeat([]byte("lost "), 1000)
	must.Write(t, path, append(whole[:ends[8]:ends[8]], tail...))
	j, _ := open(t, path)
	check(t, j, after(add(0, 9)))
	if kept, err := os.ReadFile(path + ".torn"); err != nil || !bytes.Equal(kept, tail) {
		t.Errorf("%d bytes are kept: %v", len(kept), err)
	}
}

func TestForeign(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	text := []byte("192.0.2.1\n192.0.2.2\n")
	must.Write(t, path, text)
	if _, err := Open(path, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
	if _, err := Read(path, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, ErrForeign) {
		t.Error(err)
	}
	if b, _ := os.ReadFile(path); !bytes.Equal(b, text) {
		t.Errorf("the file is now %q", b)
	}
	if _, err := Open(t.TempDir(), nil, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("opened a directory")
	}
}

func TestRejected(t *testing.T) {
	j, _ := open(t, filepath.Join(t.TempDir(), "journal"))
	apply(t, j, add(0, 2))
	bits := nth(0)
	bits.Key.Src = bits.Key.Src.Next()
	bits.Key.SrcBits = 24
	for name, spoil := range map[string]func(*Entry){
		"no list":       func(e *Entry) { e.List = "" },
		"long list":     func(e *Entry) { e.List = strings.Repeat("x", MaxListLen+1) },
		"long client":   func(e *Entry) { e.Client = strings.Repeat("x", MaxClientLen+1) },
		"long reason":   func(e *Entry) { e.Reason = strings.Repeat("x", MaxReasonLen+1) },
		"host bits":     func(e *Entry) { e.Key = bits.Key },
		"stray source":  func(e *Entry) { e.Key.Src = netip.MustParseAddr("192.0.2.9") },
		"no key at all": func(e *Entry) { e.Key = key.Key{} },
	} {
		batch := add(1, 4)
		spoil(&batch[1].Entry)
		if err := j.Apply(batch); err == nil || !strings.Contains(err.Error(), "change 2 of 3") {
			t.Errorf("%s: %v", name, err)
		}
		check(t, j, after(add(0, 2)))
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, _ := open(t, path)
	for range 2 { // also after a rewrite
		if _, err := Open(path, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, ErrLocked) {
			t.Fatalf("opened twice: %v", err)
		}
		if err := j.rewrite(); err != nil {
			t.Fatal(err)
		}
	}
	j.Close()
	open(t, path)
}

// ids returns the numbers of entries as text, after checking the rest of each.
func ids(entries map[id]Entry) string {
	var all []int
	for k, e := range entries {
		n := nth(int(e.UID))
		if e != n || k != (id{n.List, n.Key}) {
			return fmt.Sprintf("%+v instead of %+v", e, n)
		}
		all = append(all, int(e.UID))
	}
	slices.Sort(all)
	return fmt.Sprint(all)
}

// TestDurable lets the machine crash, and steps fail, while entries are added and
// removed, and while the journal is made, rewritten and opened again. What was
// acknowledged is there, of the last batch any number of the first changes may be, and
// a batch costs one sync. A change that fails has no effect in memory either.
func TestDurable(t *testing.T) {
	crash.Test{
		Begin: "[]",
		Work: func(t *testing.T, d *crash.Disk) {
			path := filepath.Join(d.Dir, "journal")
			var j *Journal
			var all []Change
			reopen := func() (usable bool) {
				if j != nil {
					_ = j.Close()
				}
				var err error
				for range 4 { // until it can be written
					if j, err = Open(path, nil, slog.New(slog.DiscardHandler)); err == nil && j.readOnly == nil {
						// If undoing a write has failed too, it may be back, as the error said.
						return ids(j.contents()) == ids(after(all))
					} else if err == nil {
						_ = j.Close()
					}
				}
				t.Fatal(err)
				return false
			}
			defer func() { _ = j.Close() }()
			change := func(batch []Change) {
				t.Helper()
				var states []string
				for i := range batch {
					states = append(states, ids(after(slices.Concat(all, batch[:i+1]))))
				}
				before := d.Count("sync /")
				err := d.Do(func() error { return j.Apply(batch) }, states...)
				if err == nil {
					all = append(all, batch...)
				} else if !strings.Contains(err.Error(), "nothing recorded") {
					t.Error(err)
				}
				if syncs := d.Count("sync /") - before; !d.Fails() && syncs != 1 {
					t.Errorf("%d syncs for a batch", syncs)
				}
				check(t, j, after(all))
			}
			if !reopen() {
				t.Fatal("a new journal is not empty")
			}
			change(add(0, 3))
			change(slices.Concat(add(3, 6), remove(0, 2)))
			_ = d.Do(j.rewrite, ids(after(all))) // if it fails, the old one is used on
			change(add(6, 8))
			change(remove(3, 4))
			if !reopen() && d.Fails() {
				return
			}
			change(add(8, 10))
			_ = d.Do(j.rewrite, ids(after(all)))
			if !reopen() && d.Fails() {
				return
			}
			change(add(10, 12))
		},
		Read: func(t *testing.T, dir string, _ int) (string, error) {
			path := filepath.Join(dir, "journal")
			j, _ := open(t, path)
			left := j.contents()
			more := nth(99)
			if j.Lost() > 0 || j.Apply([]Change{{Entry: more}}) != nil || j.Close() != nil {
				t.Errorf("%d bytes are lost, or no more can be added", j.Lost())
			}
			j, log := open(t, path)
			defer j.Close()
			if _, ok := j.Get(more.List, more.Key); !ok || j.Len() != len(left)+1 || log.Len() > 0 {
				t.Errorf("%d entries after %d, and one more; log: %s", j.Len(), len(left), log)
			}
			return ids(left), nil
		},
	}.Run(t)
}

// TestDurableTail opens a journal with more at its end than a torn record: a crash leaves
// it there, or in the file that keeps it.
func TestDurableTail(t *testing.T) {
	whole, _ := write(t, add(0, 2))
	tail := bytes.Repeat([]byte{0xa5}, frameLen+maxBodyLen+1)
	crash.Test{
		Begin: "two entries and the tail",
		Work: func(t *testing.T, d *crash.Disk) {
			d.Put(t, "journal", slices.Concat(whole, tail))
			states := []string{"two entries and the tail"}
			if d.Fails() { // what cannot be kept is no reason to stop
				states = append([]string{"two entries and no tail"}, states...)
			}
			err := d.Do(func() error {
				var log bytes.Buffer
				j, err := Open(filepath.Join(d.Dir, "journal"), nil, slog.New(slog.NewTextHandler(&log, nil)))
				if err == nil {
					err = errors.Join(j.readOnly, j.Close())
				}
				if strings.Contains(log.String(), "could not be kept") {
					err = errors.New(log.String())
				}
				return err
			}, states...)
			if err != nil && !d.Fails() {
				t.Error(err)
			}
		},
		Read: func(t *testing.T, dir string, _ int) (string, error) {
			path := filepath.Join(dir, "journal")
			now, err := os.ReadFile(path)
			kept, _ := os.ReadFile(path + ".torn")
			state := "no tail"
			if bytes.Equal(kept, tail) || bytes.HasSuffix(now, tail) {
				state = "the tail"
			}
			all := make(map[id]Entry)
			if _, _, _, bad := scan(now, func(c Change) {
				if c.whole == 0 {
					all[id{c.List, c.Key}] = c.Entry
				}
			}); bad == nil && maps.Equal(all, after(add(0, 2))) {
				state = "two entries and " + state
			}
			return state, err
		},
	}.Run(t)
}

// TestRewrite adds and removes many entries: the file stays small and complete.
func TestRewrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, log := open(t, path)
	apply(t, j, add(0, 500))
	want := after(add(0, 500))
	biggest := int64(0)
	for n := 0; n < 50_000; n += 1000 {
		apply(t, j, add(1000+n, 2000+n), remove(1000+n, 2000+n))
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		biggest = max(biggest, st.Size())
	}
	check(t, j, want)
	batch := int64(2000 * (frameLen + maxBodyLen))
	if most := 2*j.entries.size + minGarbage + batch; biggest > most || biggest < minGarbage/2 {
		t.Errorf("the file had up to %d bytes, want %d to %d", biggest, minGarbage/2, most)
	}
	j.Close()
	// A leftover of a crash is ignored.
	must.Write(t, path+".new", "half")
	j, again := open(t, path)
	check(t, j, want)
	if err := j.rewrite(); err != nil {
		t.Fatal(err)
	}
	j.Close()
	if _, err := os.Stat(path + ".new"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s.new is left: %v", path, err)
	}
	j, _ = open(t, path)
	check(t, j, want)
	if log.Len()+again.Len() > 0 {
		t.Errorf("complaints:\n%s%s", log, again)
	}
}

// TestNoRewrite checks that changes are accepted if the journal cannot be
// rewritten, and that a rewrite is not tried with each of them.
func TestNoRewrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, log := open(t, path)
	if err := os.Mkdir(path+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	var bytes int64
	for bytes < 3*minGarbage {
		apply(t, j, add(0, 600))
		bytes = j.file.Size()
	}
	if n := strings.Count(log.String(), "cannot be rewritten"); n < 1 || n > 2 {
		t.Errorf("%d complaints:\n%s", n, log)
	}
	j.Close()
	j, _ = open(t, path)
	check(t, j, after(add(0, 600)))
}

// TestExpired compares with a linear search, over random changes.
func TestExpired(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, _ := open(t, path)
	rng := seed.New(t)
	var all []Change
	for step := range 400 {
		c := Change{Entry: nth(rng.IntN(60)), Remove: rng.IntN(4) == 0}
		c.Expires = time.Time{}
		if rng.IntN(3) > 0 {
			c.Expires = began.Add(time.Duration(rng.IntN(50)) * time.Minute)
		}
		apply(t, j, []Change{c})
		all = append(all, c)
		if step%100 == 50 {
			j.Close()
			j, _ = open(t, path) // times survive restarts
		}
		now := began.Add(time.Duration(rng.IntN(50)) * time.Minute)
		want := map[id]Entry{}
		for k, e := range after(all) {
			if !e.Expires.IsZero() && !e.Expires.After(now) {
				want[k] = e
			}
		}
		got := map[id]Entry{}
		expired := j.Expired(now)
		for _, c := range expired {
			if !c.Remove {
				t.Fatalf("%+v", c)
			}
			got[id{c.List, c.Key}] = c.Entry
		}
		if !maps.Equal(got, want) || len(expired) != len(want) {
			t.Fatalf("step %d: %d expired, want %d", step, len(expired), len(want))
		}
		if step%20 == 0 {
			apply(t, j, expired)
			all = append(all, expired...)
			if n := len(j.Expired(now)); n > 0 {
				t.Fatalf("step %d: %d expired once more", step, n)
			}
		}
	}
}

// TestReaders reads while entries are added and the journal is rewritten: every
// reader sees all entries acknowledged before, and no invalid ones.
func TestReaders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, _ := open(t, path)
	const total, step = 4000, 40
	var readers sync.WaitGroup
	var mu sync.Mutex
	confirmed, done := 0, make(chan struct{})
	first := add(0, 1)[0].Entry
	for _, read := range []func() ([]Entry, error){
		func() ([]Entry, error) {
			j, err := Read(path, nil, slog.New(slog.DiscardHandler))
			if err != nil {
				return nil, err
			}
			return slices.Collect(j.Entries()), nil
		},
		func() ([]Entry, error) { return slices.Collect(j.Entries()), nil },
	} {
		readers.Go(func() {
			for last := false; !last; {
				select {
				case <-done:
					last = true
				default:
				}
				mu.Lock()
				least := confirmed
				mu.Unlock()
				for range 1000 { // often enough to meet a change
					if e, ok := j.Get(first.List, first.Key); !ok && least > 0 || ok && e.Key != first.Key {
						t.Errorf("%+v, %t, when %d were acknowledged", e, ok, least)
						return
					}
				}
				all, err := read()
				if err != nil {
					t.Error(err)
					return
				}
				got := map[id]Entry{}
				for _, e := range all {
					got[id{e.List, e.Key}] = e
				}
				if want := after(add(0, len(got))); len(got) < least || !maps.Equal(got, want) {
					t.Errorf("%d entries, acknowledged were %d", len(got), least)
					return
				}
			}
		})
	}
	for n := 0; n < total; n += step {
		apply(t, j, add(n, n+step))
		mu.Lock()
		confirmed = n + step
		mu.Unlock()
		if n%(10*step) == 0 {
			j.writing.Lock()
			err := j.rewrite()
			j.writing.Unlock()
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	close(done)
	readers.Wait()
}

// TestSustained adds and removes ten thousand entries per second, in batches,
// for a second. With WEIR_LONG=1 it takes ten, and each batch must be
// acknowledged before the next is due.
func TestSustained(t *testing.T) {
	timed.Alone(t)
	const batch, interval = 1000, 100 * time.Millisecond
	length := long.Or(time.Second, 10*time.Second)
	j, log := open(t, filepath.Join(t.TempDir(), "journal"))
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	begin, longest, late := time.Now(), time.Duration(0), 0
	for n := range int(length / interval) {
		<-ticks.C
		at := time.Now()
		apply(t, j, append(add(n*batch, (n+1)*batch), remove(max(n-1, 0)*batch, n*batch)...))
		took := time.Since(at)
		if longest = max(longest, took); took > interval {
			late++
		}
	}
	t.Logf("%d batches in %v, the longest took %v, %d were late", int(length/interval), time.Since(begin), longest, late)
	if long.Or(false, true) && late > int(length/interval)/10 { // other processes use the disk too
		t.Errorf("%d batches took more than %v", late, interval)
	}
	if j.Len() != batch || log.Len() > 0 {
		t.Errorf("%d entries at the end; log: %s", j.Len(), log)
	}
}

func TestReadNothing(t *testing.T) {
	if _, err := Read(filepath.Join(t.TempDir(), "journal"), nil, slog.New(slog.DiscardHandler)); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// FuzzScan checks that every byte of a file is accounted for, and that parsed
// records serialise to the same bytes.
func FuzzScan(f *testing.F) {
	whole := []byte(magic)
	for _, c := range slices.Concat(add(0, 6), remove(2, 4)) {
		whole, _ = appendRecord(whole, 0, c)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(append(bytes.Clone(whole[:60]), whole[61:]...))
	f.Add(whole[len(magic):])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, file []byte) {
		var records []Change
		damaged, end, _, err := scan(file, func(c Change) { records = append(records, c) })
		if err != nil {
			if s := (&scanner{file: file}); len(records) > 0 || s.resync(0) < len(file) {
				t.Fatal(err)
			}
			return
		}
		again, shift := []byte{}, 0
		if end > 0 {
			again = append(again, file[:min(len(magic), end)]...)
		}
		for len(again) < end {
			if len(damaged) > 0 && (damaged[0].from == len(again) || damaged[0].from == 0) {
				again = append(again[:damaged[0].from], file[damaged[0].from:damaged[0].to]...)
				shift, damaged = damaged[0].shift, damaged[1:]
				continue
			}
			if again, err = appendRecord(again, int64(shift), records[0]); err != nil {
				t.Fatal(err)
			}
			records = records[1:]
		}
		if len(damaged) == 1 && damaged[0].from == end && damaged[0].to == len(file) {
			damaged = nil // what is missing at the end
		}
		if len(records)+len(damaged) > 0 || !bytes.Equal(again, file[:end]) {
			t.Fatalf("%d records and %d parts are left at %d of %d", len(records), len(damaged), end, len(file))
		}
	})
}

// A record that ends within one of its fields is none, wherever that is: where it is found again behind
// damage, it is read before its checksum is.
func TestRecordEndsEarly(t *testing.T) {
	for n := range 6 {
		b, err := appendRecord(nil, 0, Change{Entry: nth(n)})
		if err != nil {
			t.Fatal(err)
		}
		body := slices.Clip(b[frameLen:])
		reason := len(body) - len(nth(n).Reason)
		for end := fixedLen - frameLen; end <= len(body); end++ {
			c, err := parseBody(slices.Clip(body[:end]))
			if (err == nil) != (end >= reason) || err == nil && c.Reason != nth(n).Reason[:end-reason] {
				t.Fatalf("%d of %d bytes: %+v, %v", end, len(body), c, err)
			}
		}
	}
}

// FuzzRecord is like FuzzScan, with a valid checksum.
func FuzzRecord(f *testing.F) {
	for n := range 6 {
		b, _ := appendRecord(nil, 0, Change{Entry: nth(n)})
		f.Add(bytes.Clone(b[frameLen:]))
		b[frameLen] |= flagsEnd
		f.Add(b[frameLen:])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) < fixedLen-frameLen || len(body) > maxBodyLen {
			return
		}
		c, err := parseBody(body)
		if err != nil {
			return
		}
		if b, err := appendRecord(nil, 0, c); err != nil || !bytes.Equal(b[frameLen:], body) {
			t.Fatalf("% x\nfor % x: %v", b, body, err)
		}
	})
}

// BenchmarkApply adds and removes, a thousand changes a batch, on a real disk:
// go test -run - -bench Apply ./control/journal
func BenchmarkApply(b *testing.B) {
	j, _ := open(b, filepath.Join(b.TempDir(), "journal"))
	changes := 0
	for b.Loop() {
		apply(b, j, add(0, 1000), remove(0, 1000))
		changes += 2000
	}
	b.ReportMetric(float64(changes)/b.Elapsed().Seconds(), "changes/s")
}

// BenchmarkOpen reads a journal of a million entries.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "journal")
	j, _ := open(b, path)
	apply(b, j, add(0, 1_000_000))
	j.Close()
	for b.Loop() {
		j, _ := open(b, path)
		j.Close()
	}
}

// A journal without a path works like any other, but leaves no file.
func TestInMemory(t *testing.T) {
	t.Chdir(t.TempDir())
	j, log := open(t, "")
	apply(t, j, add(0, 10), remove(0, 3))
	if j.Len() != 7 || log.Len() > 0 {
		t.Errorf("%d entries, log %q", j.Len(), log)
	}
	long := add(0, 1)
	long[0].Reason = strings.Repeat("x", MaxReasonLen+1)
	if err := j.Apply(long); err == nil {
		t.Error("an overlong reason was accepted")
	}
	if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

// A journal that is removed, replaced or overwritten while it is open loses nothing that was
// acknowledged: the next change restores it, or Check does.
func TestRemovedJournal(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault func(dir, path string) error
		kept  string // of the file in its place
	}{
		{"removed", func(_, path string) error { return os.Remove(path) }, ""},
		{"with its lock", func(_, path string) error { return errors.Join(os.Remove(path), os.Remove(lockOf(path))) }, ""},
		{"with its directory", func(dir, _ string) error { return os.RemoveAll(dir) }, ""},
		{"replaced", func(dir, path string) error {
			return errors.Join(os.WriteFile(path+".old", []byte("an old copy"), 0o600), os.Rename(path+".old", path))
		}, "an old copy"},
		{"emptied", func(_, path string) error { return os.Truncate(path, 0) }, ""},
		{"overwritten", func(_, path string) error { return os.WriteFile(path, []byte("an old copy"), 0o600) }, "an old copy"},
	} {
		for _, by := range []string{"a change", "Check"} {
			t.Run(c.name+", "+by, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "state")
				path := filepath.Join(dir, "journal")
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				j, log := open(t, path)
				apply(t, j, add(0, 10))
				if err := j.Check(); err != nil || log.Len() > 0 {
					t.Fatal(err, log)
				}
				if err := c.fault(dir, path); err != nil {
					t.Fatal(err)
				}
				want := after(add(0, 10))
				if by == "Check" {
					if err := j.Check(); err != nil {
						t.Fatal(err)
					}
				} else {
					apply(t, j, add(10, 20))
					want = after(add(0, 20))
				}
				if n := strings.Count(log.String(), "was removed or replaced while weir ran"); n != 1 {
					t.Errorf("logged %d times: %s", n, log)
				}
				if err := j.Check(); err != nil {
					t.Fatal(err)
				}
				if other, err := Open(path, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, ErrLocked) {
					t.Errorf("another process can open it: %v, %v", other, err)
				}
				if kept, _ := os.ReadFile(path + ".replaced"); string(kept) != c.kept {
					t.Errorf("kept %q, want %q", kept, c.kept)
				}
				apply(t, j, add(20, 30))
				for _, change := range add(20, 30) {
					want[id{change.List, change.Key}] = change.Entry
				}
				j.Close()
				j, _ = open(t, path)
				check(t, j, want)
			})
		}
	}
}

// An old copy that has come to a journal's path stays there until the journal is written anew.
func TestReplacedJournalThatCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, _ := open(t, path)
	apply(t, j, add(0, 5))
	old := must.Read(t, path)
	apply(t, j, add(5, 10))
	// An old copy comes, and nothing can be written, as on a full disk.
	if err := errors.Join(os.Mkdir(path+".new", 0o700), os.WriteFile(path+".old", old, 0o600), os.Rename(path+".old", path)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := j.Check(); err == nil {
			t.Error("all is well")
		}
		if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, old) {
			t.Errorf("the old copy is gone, and no new one is there: %d bytes, %v", len(b), err)
		}
	}
	if err := os.Remove(path + ".new"); err != nil {
		t.Fatal(err)
	}
	if err := j.Check(); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(path + ".replaced"); err != nil || !bytes.Equal(b, old) {
		t.Errorf("the old copy is not kept: %d bytes, %v", len(b), err)
	}
	j.Close()
	j, _ = open(t, path)
	check(t, j, after(add(0, 10)))
}

// Where it cannot be written anew, changes fail, and Check says so, until it can.
func TestRemovedJournalThatCannotBeRestored(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	path := filepath.Join(dir, "journal")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	j, _ := open(t, path)
	apply(t, j, add(0, 10))
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := j.Apply(add(10, 20)); err == nil {
		t.Error("a change is acknowledged that is nowhere")
	}
	if err := j.Check(); err == nil {
		t.Error("all is well")
	}
	check(t, j, after(add(0, 10)))
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := j.Check(); err != nil {
		t.Error(err)
	}
	j.Close()
	j, _ = open(t, path)
	check(t, j, after(add(0, 10)))
}
