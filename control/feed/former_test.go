package feed

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"weir/tests/must"
)

// keeping returns a feed that keeps entries until its source, a file that is not there, is read, and the
// directory where they are saved.
func keeping(t *testing.T, content string) (*Feed, Config, string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(t.TempDir(), "list")
	must.Write(t, path, content)
	c := config(Source{File: Path(path)})
	c.Hold, c.Purpose = true, "block src"
	former := mustOpen(t, c, "")
	if o := fetch(t, former); o.Result != New {
		t.Fatalf("%+v", o)
	}
	c.Sources = slices.Clone(c.Sources)
	c.Sources[0].File += ".next"
	f := mustOpen(t, c, dir)
	f.Inherit(former, true)
	return f, c, dir
}

// What is damaged is not used, and saving takes little memory beside the entries.
func TestFormerFile(t *testing.T) {
	const entries = 200_000
	f, c, dir := keeping(t, addresses(entries))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := f.Keep(0); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	path := formerPath(f.sources[0].saved)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > uint64(len(whole))/4 {
		t.Errorf("saving %d bytes took %d", len(whole), took)
	}
	if o := f.Find(slices.Collect(f.Contents().All()))[0]; o != (Origin{Source: "kept until " + string(c.Sources[0].File) + " is read"}) {
		t.Errorf("origin %+v", o)
	}
	kept := func(ctx context.Context) int {
		f, err := open(c, dir)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.loadFormer(ctx, f.sources[0])
		return f.Contents().Len()
	}
	if n := kept(t.Context()); n != entries {
		t.Errorf("%d entries", n)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if n := kept(ended); n != 0 {
		t.Errorf("%d entries after the end", n)
	}
	for name, damaged := range map[string][]byte{
		"byte":  append(bytes.Replace(whole[:1000:1000], []byte("1"), []byte("2"), 1), whole[1000:]...),
		"cut":   whole[:len(whole)-1],
		"front": whole[20:],
		"none":  nil,
	} {
		must.Write(t, path, damaged)
		if n := kept(t.Context()); n != 0 {
			t.Errorf("%s: %d entries", name, n)
		}
	}
}

// What could be saved only later ends what a source kept, too: it would come back where the contents
// have no entries.
func TestFormerEndsLater(t *testing.T) {
	f, c, dir := keeping(t, good)
	if err := f.Keep(0); err != nil {
		t.Fatal(err)
	}
	must.Write(t, string(c.Sources[0].File), "")
	saved := f.sources[0].saved
	if err := os.Mkdir(saved+".tmp", 0o700); err != nil {
		t.Fatal(err)
	}
	accept := func(want Result, saved bool) {
		t.Helper()
		o, err := f.Accept(t.Context())
		if err != nil || o[0].Result != want || (o[0].Unsaved == nil) != saved {
			t.Fatalf("%+v, %v", o, err)
		}
		if err := f.Keep(f.Version()); err != nil {
			t.Fatal(err)
		}
	}
	accept(New, false)
	if err := os.Remove(saved + ".tmp"); err != nil {
		t.Fatal(err)
	}
	accept(Unchanged, true)
	f, o := loaded(t, c, dir)
	want(t, f, o, Loaded, NoFailure, "")
	if _, err := os.Stat(formerPath(saved)); err == nil {
		t.Error("it is left")
	}
}

// What could not be saved is saved at a later attempt, and until then the status says so.
func TestFormerIsSavedLater(t *testing.T) {
	f, c, dir := keeping(t, good)
	blocked := formerPath(f.sources[0].saved) + ".tmp"
	if err := os.MkdirAll(blocked, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.Keep(0); err == nil || !f.Status().Sources[0].Unsaved {
		t.Errorf("%v, %+v", err, f.Status().Sources[0])
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	f.Run(ctx, func(o Outcome) {
		if o.Result != Failed || f.Status().Sources[0].Unsaved {
			t.Errorf("%+v, %+v", o, f.Status().Sources[0])
		}
		end()
	})
	f, _ = loaded(t, c, dir)
	if st := f.Status().Sources[0]; !st.Former || st.Entries != 4 || st.Unsaved {
		t.Errorf("%+v", st)
	}
}

// What was left behind does not come back, what a feed keeps for as long does.
func TestFormerAge(t *testing.T) {
	for name, x := range map[string]struct {
		age   time.Duration
		again bool // it was kept until now
		want  int
	}{
		"recent":     {formerAge - time.Minute, false, 4},
		"left":       {formerAge + time.Minute, false, 0},
		"kept":       {formerAge + time.Minute, true, 4},
		"from later": {-time.Hour, false, 4},
	} {
		f, c, dir := keeping(t, good)
		s := f.sources[0]
		if err := f.writeFormer(formerPath(s.saved), s.former, time.Now().Add(-x.age)); err != nil {
			t.Fatal(err)
		}
		s.savedFormer, s.formerSaved = s.former, time.Now().Add(-x.age)
		if x.again {
			if err := f.Keep(0); err != nil {
				t.Fatal(err)
			}
		}
		if n := mustOpen(t, c, dir).Contents().Len(); n != x.want {
			t.Errorf("%s: %d entries, want %d", name, n, x.want)
		}
	}
}
