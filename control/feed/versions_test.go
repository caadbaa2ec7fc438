package feed

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"weak"

	"weir/control/api"
	"weir/control/list/listfile"
	"weir/tests/crash"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/seed"
)

// lines4 returns the text of a list with the addresses 192.0.2.n in a canonical order.
func lines4(all ...int) string {
	var b strings.Builder
	for _, n := range all {
		fmt.Fprintf(&b, "192.0.2.%d\n", n)
	}
	return b.String()
}

// plainOf returns the active entries in the format of lists.
func plainOf(t *testing.T, f *Feed) string {
	t.Helper()
	var b strings.Builder
	if _, err := listfile.Plain(f.Contents()).WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// versionsOf returns the versions of the only source.
func versionsOf(t *testing.T, f *Feed) []api.FeedVersion {
	t.Helper()
	all, err := f.Versions()
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	return all[0].Versions
}

// What versions contained can be asked, also of those that were refused by an operator or a
// guard, by the checksum that their publisher computes, and after a restart.
func TestVersionDiffs(t *testing.T) {
	crash.WithoutSyncs(t)
	of := func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }
	first, second, shrunk := "# 1\n"+lines4(1, 2, 3, 4), "# 2\n"+lines4(1, 2, 3, 4, 5, 6), "# 3\n"+lines4(9)
	dir, s := t.TempDir(), serve(t, text(first))
	c := named("list", Format{}, from(s))
	c.MaxShrink = DefaultMaxShrink
	f := mustOpen(t, c, dir)
	fetch(t, f)
	s.now(text(second))
	fetch(t, f)
	s.now(text(shrunk))
	fetch(t, f)
	check := func(when, diff string, want ...string) {
		t.Helper()
		all, err := f.Versions(diff)
		var got []string
		if err == nil {
			for _, v := range slices.Concat(all[0].Refused, all[0].Versions) {
				if v.Diff == nil {
					got = append(got, v.SHA256)
				} else {
					got = append(got, fmt.Sprintf("%s %v %v %.8s of %s", v.SHA256, v.Diff.Added, v.Diff.Removed, v.Refusal, v.Diff.From))
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s\n%v", when, strings.Join(got, "\n"), strings.Join(want, "\n"), err)
		}
	}
	for _, when := range []string{"at once", "after a restart"} {
		check(when, "", of(shrunk)+" [192.0.2.9] [192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5 192.0.2.6] 1 entrie of "+of(second),
			of(second)+" [192.0.2.5 192.0.2.6] []  of "+of(first), of(first))
		check(when, of(second)[:9], of(shrunk), of(second)+" [192.0.2.5 192.0.2.6] []  of "+of(first), of(first))
		f = mustOpen(t, c, dir)
	}
	if all, err := f.Versions(of(second), of(shrunk)); err != nil || len(all[0].Refused[0].Diff.Removed) != 6 {
		t.Errorf("%+v, %v", all, err)
	}
	for _, c := range []struct{ want, from, to string }{
		{`no such version: no known version has a checksum that begins with "none"`, "none", ""},
		{`no such version: no known version has a checksum that begins with "none"`, of(first), "none"},
		{`no such version: "` + of(first) + `" is the first that is known, with none before it`, of(first), ""},
	} {
		diff := []string{c.from, c.to}
		if c.to == "" {
			diff = diff[:1]
		}
		if _, err := f.Versions(diff...); !errors.Is(err, ErrUnknownVersion) || err.Error() != c.want {
			t.Errorf("%q: %v", diff, err)
		}
	}
	rollBack(t, f)
	s.now(text(second))
	fetch(t, f)
	for _, when := range []string{"rolled back", "rolled back, and restarted"} {
		check(when, "", of(second)+" [192.0.2.5 192.0.2.6] [] rolled b of "+of(first), of(first))
		f = mustOpen(t, c, dir)
	}
	s.now(text(lines4(1, 2, 3, 4, 7)))
	fetch(t, f)
	check("other contents", "", of(lines4(1, 2, 3, 4, 7))+" [192.0.2.7] []  of "+of(first), of(first))
}

// rollBack returns to the version before, and keeps it.
func rollBack(t *testing.T, f *Feed) {
	t.Helper()
	o, err := f.Rollback(t.Context())
	if err != nil || o.Result != New || o.Unsaved != nil {
		t.Fatalf("%v, %v, %v, %v", o.Result, o.Err, o.Unsaved, err)
	}
	if f.Hold {
		if err := f.Keep(f.Version()); err != nil {
			t.Fatal(err)
		}
	}
}

// Contents that were rolled back stay away, whatever else the source changes, until it has
// mended them, or they are accepted; also after a restart.
func TestRollback(t *testing.T) {
	crash.WithoutSyncs(t)
	good, bad := lines4(1, 2, 3, 4), lines4(1, 2, 3, 4, 11, 12, 13, 14, 15, 16)
	for _, c := range []struct {
		name   string
		format Format
		text   func(string) string
	}{
		{"list", Format{}, func(s string) string { return "# of now\n" + s }},
		{"json", Format{Kind: JSON, Path: ".ips[]"}, func(s string) string {
			return `{"ips": ["` + strings.Join(strings.Fields(s), `", "`) + `"]}`
		}},
	} {
		for _, hold := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/hold=%t", c.name, hold), func(t *testing.T) {
				dir, s := t.TempDir(), serve(t, text(c.text(good)))
				c := struct {
					Config
					text func(string) string
				}{named("list", c.format, from(s)), c.text}
				c.Hold = hold
				f := mustOpen(t, c.Config, dir)
				take := func(entries string, result Result) Outcome {
					t.Helper()
					s.now(text(c.text(entries)))
					o := fetch(t, f)
					if o.Result != result {
						t.Fatalf("%v, %v, want %v", o.Result, o.Err, result)
					}
					if hold {
						if err := f.Keep(f.Version()); err != nil {
							t.Fatal(err)
						}
					}
					return o
				}
				has := func(when, want string) {
					t.Helper()
					if got := plainOf(t, f); got != want {
						t.Fatalf("%s:\n%swant\n%s", when, got, want)
					}
				}
				take(good, New)
				if _, err := f.Rollback(t.Context()); !errors.Is(err, ErrNoVersion) {
					t.Fatalf("the first version rolled back: %v", err)
				}
				take(bad, New)
				rollBack(t, f)
				has("rolled back", good)
				for _, restarted := range []bool{false, true} {
					if restarted {
						f = mustOpen(t, c.Config, dir)
						has("restarted", good)
					}
					if f.Status().Sources[0].RolledBack.IsZero() {
						t.Error("the status does not say so")
					}
					for i, still := range []string{bad, bad + lines4(17), lines4(2, 3, 4, 11, 12, 13, 14, 15), bad} {
						if o := take(still, Unchanged); !o.Rejected {
							t.Errorf("form %d: the outcome does not say that it is refused", i)
						}
						has(fmt.Sprintf("the source still has it, in form %d", i), good)
					}
				}
				mended := good + lines4(11, 21)
				take(mended, New)
				has("mended", mended)
				if st := f.Status().Sources[0]; !st.RolledBack.IsZero() {
					t.Errorf("%+v", st)
				}
				if _, err := os.Stat(rejectedPath(f.sources[0].saved)); !os.IsNotExist(err) {
					t.Errorf("the refused contents are kept: %v", err)
				}
				take(bad, New) // that is another change
				rollBack(t, f)
				has("rolled back again", mended)
				s.now(text(c.text(bad)))
				if o, err := f.Accept(t.Context()); err != nil || o[0].Result != New {
					t.Fatal(o, err)
				}
				if hold {
					_ = f.Keep(f.Version())
				}
				has("accepted", bad)
				if o := take(bad, Unchanged); o.Rejected {
					t.Error("what was accepted is refused")
				}
				f = mustOpen(t, c.Config, dir)
				has("accepted, and restarted", bad)
			})
		}
	}
}

// Versions are the contents that were active, in order, with their numbers, over restarts, contents that were
// not activated and changes of bytes alone; a rollback returns to each of them.
func TestVersions(t *testing.T) {
	long.Seconds(t)
	crash.WithoutSyncs(t)
	random := seed.New(t)
	for range 20 {
		dir, s := t.TempDir(), serve(t, text(""))
		c := config(from(s))
		c.MaxShrink, c.Hold = 1, random.IntN(2) == 0
		f := mustOpen(t, c, dir)
		var model [][]int // the first one is active
		for n := range 12 {
			next := pick(random)
			same := len(model) > 0 && random.IntN(4) == 0
			if same {
				next = model[0]
			}
			same = same || len(model) > 0 && slices.Equal(next, model[0])
			s.now(text(fmt.Sprintf("# %d\n%s", n, lines4(next...))))
			if o := fetch(t, f); o.Result != New {
				t.Fatal(o.Result, o.Err)
			}
			kept := true
			if c.Hold {
				if kept = random.IntN(4) > 0; kept {
					if err := f.Keep(f.Version()); err != nil {
						t.Fatal(err)
					}
				} else {
					f.Revert(f.Version(), errors.New("it does not fit"))
				}
			}
			if kept && !same {
				model = append([][]int{next}, model[:min(len(model), maxVersions)]...)
			}
			if random.IntN(3) == 0 {
				f = mustOpen(t, c, dir)
			}
			if len(model) == 0 {
				continue
			}
			all := versionsOf(t, f)
			if len(all) != len(model) {
				t.Fatalf("%d versions, want %d", len(all), len(model))
			}
			for i, v := range all {
				if v.Entries != len(model[i]) || i > 0 && all[i-1].Since.Before(v.Since) {
					t.Fatalf("version %d: %v of %v", i, v, all)
				}
				if i+1 < len(model) && v.Added-v.Removed != len(model[i])-len(model[i+1]) {
					t.Fatalf("version %d: %+v after %d entries", i, v, len(model[i+1]))
				}
			}
		}
		for len(model) > 1 {
			rollBack(t, f)
			if random.IntN(2) == 0 {
				f = mustOpen(t, c, dir)
			}
			if got, want := plainOf(t, f), lines4(model[1]...); got != want {
				t.Fatalf("rolled back to\n%swant\n%s", got, want)
			}
			model = model[1:]
			if all := versionsOf(t, f); len(all) != len(model) {
				t.Fatalf("after a rollback, %d versions, want %d", len(all), len(model))
			}
		}
	}
}

// pick returns some numbers of addresses, at least one.
func pick(random *rand.Rand) (all []int) {
	for n := range 30 {
		if random.IntN(3) == 0 {
			all = append(all, n)
		}
	}
	return append(all, 30)
}

// Damage to the files of versions costs no contents, and nothing damaged is rolled back to.
func TestVersionsDamaged(t *testing.T) {
	crash.WithoutSyncs(t)
	dir, s := t.TempDir(), serve(t, text(lines4(1)))
	f := mustOpen(t, config(from(s)), dir)
	fetch(t, f)
	s.now(text(lines4(1, 2)))
	fetch(t, f)
	path := versionsPath(f.sources[0].saved)
	whole := must.Read(t, path)
	spoilt := slices.Clone(whole)
	spoilt[0] ^= 1
	must.Write(t, path, string(spoilt))
	if o, err := f.Rollback(t.Context()); err != nil || o.Failure != Damaged {
		t.Errorf("%v %v %v", o.Failure, o.Err, err)
	}
	for _, text := range []string{"", string(whole[:len(whole)/2])} {
		must.Write(t, path, text)
		if o, err := f.Rollback(t.Context()); !errors.Is(err, ErrNoVersion) {
			t.Errorf("%v, %v", o, err)
		}
	}
	must.Write(t, path, string(whole))
	rollBack(t, f)
	if err := os.Remove(rejectedPath(f.sources[0].saved)); err != nil {
		t.Fatal(err)
	}
	s.now(text("# changed\n" + lines4(1, 2)))
	if o := fetch(t, f); o.Failure != Damaged { // it could have the refused contents
		t.Errorf("%v, %v", o.Failure, o.Err)
	}
	if got := plainOf(t, f); got != lines4(1) {
		t.Error(got)
	}
	if o, err := f.Accept(t.Context()); err != nil || o[0].Result != New {
		t.Error(o, err)
	}
}

// A feed knows what an operator has removed until that is kept or reverted, and no longer. What a
// source leaves out by itself is no part of it, nor what a source has.
func TestContentsUndone(t *testing.T) {
	crash.WithoutSyncs(t)
	first, second := serve(t, text(lines4(1, 2))), serve(t, text(lines4(11, 12)))
	c := named("list", Format{}, from(first), from(second))
	c.Hold, c.MaxShrink = true, 1
	f := mustOpen(t, c, t.TempDir())
	read := func(s *server, entries ...int) {
		t.Helper()
		if s != nil {
			s.now(text(lines4(entries...)))
		}
		if o, err := f.Fetch(t.Context()); err != nil || o[0].Result == Failed || o[1].Result == Failed {
			t.Fatalf("%+v, %v", o, err)
		}
	}
	keep := func() {
		t.Helper()
		if err := f.Keep(f.Version()); err != nil {
			t.Fatal(err)
		}
	}
	undo := func(s *source) {
		t.Helper()
		if o, err := f.rollBack(s); err != nil || o.Result != New {
			t.Fatalf("%+v, %v", o, err)
		}
	}
	check := func(when string, want ...int) {
		t.Helper()
		contents, undone := f.ContentsUndone()
		if d := contents.Diff(f.Contents()); d.Len() > 0 {
			t.Errorf("%s: other contents", when)
		}
		var b strings.Builder
		if _, err := listfile.Plain(undone).WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		if b.String() != lines4(want...) {
			t.Errorf("%s:\n%swant\n%s", when, b.String(), lines4(want...))
		}
	}
	read(nil)
	keep()
	read(first, 1, 2, 3, 4, 5, 11)
	keep()
	check("bad")
	undo(f.sources[0])
	check("undone", 3, 4, 5)
	read(nil)
	check("the source still has it", 3, 4, 5)
	version := f.Version()
	read(first, 1, 2, 3, 6)
	check("one is there again", 4, 5)
	read(first, 1, 2, 6)
	check("the source has left it out by itself", 4, 5)
	if err := f.Keep(version); err != nil {
		t.Fatal(err)
	}
	check("an earlier version is kept", 4, 5)
	read(second, 12)
	check("the other source leaves out what was undone, too", 4, 5)
	kept := weak.Make(f.sources[0].undecided.undone)
	keep()
	check("kept")
	read(nil)
	if runtime.GC(); kept.Value() != nil {
		t.Error("what was undone stays in memory")
	}

	read(first, 1, 2, 6, 20)
	read(second, 12, 20)
	keep()
	undo(f.sources[0])
	check("the other source has it")
	read(second, 12)
	check("the other source has left it out")
	keep()

	read(first, 1, 2, 6, 30, 31, 32)
	keep()
	read(second, 12, 30)
	version = f.Version()
	undo(f.sources[0])
	check("the other source has one", 31, 32)
	f.Revert(version, errors.New("does not fit"))
	check("not any more", 30, 31, 32)
	f.Revert(f.Version(), errors.New("does not fit"))
	check("reverted")
}
