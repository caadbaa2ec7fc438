package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestDiff(t *testing.T) {
	old := file(t, "old.txt", strings.Join([]string{
		"192.0.2.1 # both", "198.51.100.0/24", "10.0.0.2", "2001:db8::/32", "2001:db8::1", "tcp *:* > 203.0.113.7:443", "192.0.2.1",
	}, "\n"))
	const next = "10.0.0.0-10.0.0.2\n2001:db8::1\n192.0.2.1\n2001:db8::2\n> 203.0.113.9\ntcp 0.0.0.0/0:* > 203.0.113.7:443\n"
	const want = `+10.0.0.0/31
-198.51.100.0/24
-2001:db8::/32
+2001:db8::2
+> 203.0.113.9
removed: 2, added: 3, in both: 4
`
	code, out, log := weir(t, next, "diff", "--exit-code", old, "-")
	if code != exitDiffer || log != "" || out != want {
		t.Errorf("exit code %d\n%s%s\nwant\n%s", code, out, log, want)
	}
	if code, _, _ := weir(t, next, "diff", old, "-"); code != exitOK {
		t.Errorf("without --exit-code: exit code %d", code)
	}
	if code, out, _ := weir(t, "", "diff", "--exit-code", old, old); code != exitOK || out != "removed: 0, added: 0, in both: 6\n" {
		t.Errorf("the same: exit code %d\n%s", code, out)
	}
	var got struct {
		Removed, Added []string
		Both           int
	}
	code, out, _ = weir(t, next, "diff", "--json", old, "-")
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || got.Both != 4 ||
		!slices.Equal(got.Removed, []string{"198.51.100.0/24", "2001:db8::/32"}) ||
		!slices.Equal(got.Added, []string{"10.0.0.0/31", "2001:db8::2", "> 203.0.113.9"}) {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
	code, out, _ = weir(t, "", "diff", "--json", old, old)
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || len(got.Removed)+len(got.Added) != 0 {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
}

// Over random lists it says the same as two maps.
func TestDiffAgainstMaps(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	some := func() (map[string]bool, string) {
		all, text := map[string]bool{}, ""
		for range 2000 {
			entry := fmt.Sprintf("10.0.%d.%d", random.IntN(8), random.IntN(256))
			switch n := random.IntN(256); random.IntN(4) {
			case 0:
				entry = fmt.Sprintf("10.%d.0.0/16", n)
			case 1:
				entry = fmt.Sprintf("2001:db8::%x", n+1)
			case 2:
				entry = fmt.Sprintf("udp 10.0.0.0/8:%d > 192.0.2.1:*", n)
			}
			all[entry] = true
			text += entry + "\n"
		}
		return all, text
	}
	oldSet, oldText := some()
	newSet, newText := some()
	var want []string
	for e := range oldSet {
		if !newSet[e] {
			want = append(want, "-"+e)
		}
	}
	for e := range newSet {
		if !oldSet[e] {
			want = append(want, "+"+e)
		}
	}
	slices.Sort(want)
	_, out, _ := weir(t, "", "diff", file(t, "old.txt", oldText), file(t, "new.txt", newText))
	got := strings.Split(strings.TrimSpace(out), "\n")
	if total := fmt.Sprintf(", in both: %d", len(oldSet)-countOf(want, '-')); !strings.Contains(got[len(got)-1], total) {
		t.Errorf("%s, want %s", got[len(got)-1], total)
	}
	got = got[:len(got)-1]
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%d lines, want %d", len(got), len(want))
	}
	if len(want) == 0 || len(want) == len(oldSet)+len(newSet) {
		t.Error("the lists say nothing: all or none of their entries differ")
	}
}

func countOf(lines []string, mark byte) int {
	n := 0
	for _, l := range lines {
		if l[0] == mark {
			n++
		}
	}
	return n
}

func TestDiffFailures(t *testing.T) {
	good, bad := file(t, "good.txt", "192.0.2.1\n"), file(t, "bad.txt", "192.0.2.1\nwhat\n")
	some := file(t, "some.txt", strings.Repeat("192.0.2.1\n", 40)+"192.0.2.1/24\n")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{good, bad}, exitFailure, bad + ":2: "},
		{[]string{good + "x", good}, exitFailure, good + "x"},
		{[]string{good, file(t, "none.txt", "# nothing\n")}, exitFailure, "none.txt: no entries"},
		{[]string{good, file(t, "none.json", "[]\n") + ",format=json,path=.[]"}, exitFailure, "none.json: no entries"},
		{[]string{good}, exitUsage, "NEW is missing"},
		{[]string{"-", "-"}, exitUsage, "standard input"},
	} {
		code, out, log := weir(t, "", append([]string{"diff"}, c.args...)...)
		if code != c.code || out != "" || !strings.HasPrefix(log, "weir: ") || !strings.Contains(log, c.want) {
			t.Errorf("%v: exit code %d\n%s%s", c.args, code, out, log)
		}
	}
	hosts := file(t, "hosts", "127.0.0.1 localhost\n192.0.2.1 a\n192.0.2.2 b\n")
	iocs := file(t, "iocs.csv", "id,192.0.2.2:80\n")
	if code, out, log := weir(t, "", "diff", "--ignore-ports", hosts+",format=hosts", iocs+",format=csv,column=2"); code != exitOK || log != "" ||
		out != "-192.0.2.1\nremoved: 1, added: 0, in both: 1\n" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, _, log := weir(t, "", "diff", good, good+",format=csv"); code != exitUsage || !strings.Contains(log, "format csv needs column") {
		t.Errorf("exit code %d\n%s", code, log)
	}
	if code, out, log := weir(t, "", "diff", "/dev/null", good); code != exitOK || log != "" || !strings.HasPrefix(out, "+192.0.2.1\n") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	// A few bad lines are reported.
	code, out, log := weir(t, "", "diff", good, some)
	if code != exitOK || out != "removed: 0, added: 0, in both: 1\n" || !containsAll(log, []string{some + ":41: ", "1 of 41"}) {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if _, out, log := weir(t, "", "diff", "--lenient", good, some); log != "" || out != "+192.0.2.0/24\nremoved: 0, added: 1, in both: 1\n" {
		t.Errorf("%s%s", out, log)
	}
}
