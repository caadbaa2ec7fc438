package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"weir/tests/lab"
	"weir/tests/must"
)

// weir executes a command line in this process.
func weir(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, log bytes.Buffer
	code = execute(context.Background(), args, strings.NewReader(stdin), &out, &log)
	return code, out.String(), log.String()
}

// file writes a file and returns its path.
func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.Write(t, path, content)
	return path
}

// pcap is a capture of UDP packets, each from one of the sources.
func pcap(sources ...byte) string {
	b := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	b = binary.LittleEndian.AppendUint32(b, 4<<16|2) // version
	b = append(b, make([]byte, 8)...)
	b = binary.LittleEndian.AppendUint32(b, 1<<16)
	b = binary.LittleEndian.AppendUint32(b, 1)
	for _, last := range sources {
		f := []byte{
			2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00,
			0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, last, 198, 51, 100, 7,
			0x04, 0, 0, 53, 0, 8, 0, 0,
		}
		b = append(b, make([]byte, 8)...)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f)))
		b = binary.LittleEndian.AppendUint32(b, 100) // cut short in the capture
		b = append(b, f...)
	}
	return string(b)
}

func commands(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		all = append(all, commands(sub)...)
	}
	return all
}

func TestHelp(t *testing.T) {
	for _, c := range commands(newRoot()) {
		if c.Short == "" || c.Example == "" {
			t.Errorf("%s: no short text or no example", c.CommandPath())
		}
		// A line names a command, a paragraph describes it. weir help is of cobra.
		if c.Long == "" && c.Name() != "help" {
			t.Errorf("%s: no description", c.CommandPath())
		}
		args := strings.Fields(c.CommandPath() + " --help")[1:]
		code, out, log := weir(t, "", args...)
		if code != exitOK || !strings.Contains(out, "Examples:\n") || log != "" {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, log)
		}
		// Examples are pasted, and stay whole.
		for line := range strings.Lines(strings.Replace(out, c.Example, "", 1)) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
				t.Errorf("%v: a line of %d characters: %s", args, n, line)
			}
		}
	}
}

// Every example of ours is a command line that parses.
func TestExamples(t *testing.T) {
	for _, c := range commands(newRoot()) {
		for line := range strings.Lines(strings.ReplaceAll(c.Example, " && ", "\n")) {
			line, _, _ = strings.Cut(line, "#") // a comment
			_, line, found := strings.Cut(line, "weir ")
			if !found {
				continue
			}
			line, _, _ = strings.Cut(line, "|")
			var args []string
			for i, part := range strings.Split(line, "'") {
				if i%2 == 1 {
					args = append(args, part) // in quotes
					continue
				}
				for word := range strings.FieldsSeq(part) {
					if len(word) < 2 || word[0] != '>' { // it goes to a file
						args = append(args, word)
					}
				}
			}
			root := newRoot()
			sub, rest, err := root.Find(args)
			if err == nil {
				err = sub.ParseFlags(rest)
			}
			if err == nil {
				err = sub.ValidateArgs(sub.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s: example %q: %v", c.CommandPath(), line, err)
			}
		}
	}
}

func TestUsageErrors(t *testing.T) {
	list := file(t, "feed.txt", "192.0.2.1\n")
	for _, args := range [][]string{
		{"nosuch"},
		{"--nosuch"},
		{"run"},
		{"run", "--block", list},
		{"run", "--iface", "eth0", "--block", list, "stray"},
		{"run", "--mode", "fuzzy"},
		{"run", "--direction", "up"},
		{"run", "--malformed", "maybe"},
		{"run", "--max-bad", "200%"},
		{"run", "--failsafe-port", "22"},
		{"run", "--failsafe", "10.0.0.1/8"},
		{"run", "--xdp", "fast"},
		{"replay"},
		{"replay", "--engine", "steam", "x"},
		{"explain"},
		{"explain", "--block", list, "what"},
		{"explain", "--block", list, "192.0.2.1/24"},
		{"explain", "--block", list, "192.0.2.1", "--capture", list},
		{"status", "eth0", "stray"},
		{"detach", "--all", "--iface", "eth0", "--pins", list},
		{"detach", "--netns", "lab", "--pins", list}, // no file system of BPF: it could detach nothing
		{"detach", "--netns", "lab", "--all", "--pins", list},
		{"doctor", "--netns", "lab"},
		{"demo", "--seconds", "0"},
		{"version", "stray"},
		{"lists", "--worth", "--versions", "x"},
		{"refresh", "x", "--accept", "--rollback"},
		{"refresh", "--accept"},
		{"fleet", "refresh", "x", "--accept", "--rollback"},
	} {
		code, out, log := weir(t, "", args...)
		if code != exitUsage || out != "" || !strings.HasPrefix(log, "weir: ") || strings.Count(log, "\n") != 2 {
			t.Errorf("weir %s: exit code %d\n%s%s", strings.Join(args, " "), code, out, log)
		}
	}
}

// Errors in arguments name them.
func TestWrongArguments(t *testing.T) {
	for line, want := range map[string]string{
		"sttus":                 `"sttus": weir has no such command: did you mean status?`,
		"qqqqqqq":               `"qqqqqqq": weir has no such command`,
		"help qqqqqqq":          `"qqqqqqq": weir has no such command`,
		"help plan qqqqqqq":     `"qqqqqqq": weir plan has no such command`,
		"multicast lst":         `"lst": weir multicast has no such command: did you mean list?`,
		"status eth0 eth1":      `"eth1": weir status takes INTERFACE, and nothing more`,
		"check":                 "CONFIG is missing",
		"check a.yaml b.yaml":   `"b.yaml": weir check takes CONFIG, and nothing more`,
		"diff a.txt":            "NEW is missing",
		"diff a b c":            `"c": weir diff takes OLD and NEW, and nothing more`,
		"replay":                "CAPTURE is missing",
		"completion":            "SHELL is missing",
		"completion tcsh":       `"tcsh" is none of bash, fish, zsh`,
		"multicast add":         "GROUP is missing",
		"audit --limit x":       `invalid argument "x" for "--limit" flag: want a whole number`,
		"status --json=x":       `invalid argument "x" for "--json" flag: want true or false`,
		"plan fpr --fpr 1e999":  `invalid argument "1e999" for "--fpr" flag: out of range`,
		"plan fpr --fpr x":      `invalid argument "x" for "--fpr" flag: want a number`,
		"block tcp 192.0.2.1:*": `"tcp": no ">" in the flow: a flow is one argument, so put it in quotes, as in 'tcp *:* > 198.51.100.7:443'`,
		"allow example.com":     `"example.com": not an address: unexpected character (at "example.com"): packets have no names, so name the addresses`,
		"history --since 60d":   "--since: want more than 0, and up to 30d",
		"history --step 1s":     "--step: want at least 10s",
		"feeds spamhaus":        `unknown feed "spamhaus": did you mean spamhaus_drop?`,
		"explain --exit-code":   `name what to explain: ADDRESS, PREFIX, FLOW, "-" or --capture FILE`,
		"completion bash again": `"again": weir completion takes SHELL, and nothing more`,
	} {
		code, out, log := weir(t, "", strings.Fields(line)...)
		if code != exitUsage || out != "" || !strings.HasPrefix(log, "weir: "+want+"\n") {
			t.Errorf("weir %s: exit code %d, want %q\n%s%s", line, code, want, out, log)
		}
	}
}

func TestHelpOf(t *testing.T) {
	for line, of := range map[string]string{"help": "--help", "help run": "run --help", "help plan fpr": "plan fpr --help"} {
		code, out, log := weir(t, "", strings.Fields(line)...)
		if _, want, _ := weir(t, "", strings.Fields(of)...); code != exitOK || out != want || log != "" {
			t.Errorf("weir %s is not weir %s: exit code %d\n%s%s", line, of, code, out, log)
		}
	}
	for _, shell := range []string{"bash", "fish", "zsh"} {
		if code, out, log := weir(t, "", "completion", shell); code != exitOK || !strings.Contains(out, shell+" completion") || log != "" {
			t.Errorf("completion for %s: exit code %d\n%.200s%s", shell, code, out, log)
		}
	}
}

// Completion proposes what fits: files only where a file goes.
func TestCompletion(t *testing.T) {
	const none, files = ":4", ":0"
	for line, want := range map[string]string{
		"run --iface l":           "lo\n" + none,
		"run --iface x,l":         "x,lo\n" + none,
		"detach --iface l":        "lo\n" + none,
		"multicast add --iface l": "lo\n" + none,
		"run --block ":            files,
		"run --config ":           files,
		"run --pins ":             files,
		"bench --feed ":           files,
		"run --failsafe ":         none,
		"run --mode a":            "approx\n" + none,
		"block --reason ":         none,
		"block ":                  none,
		"status ":                 none,
		"check ":                  files,
		"replay x.pcap ":          files,
		"completion f":            "fish\n" + none,
		"help plan f":             "fpr\t",
	} {
		args := strings.Split(line, " ")
		code, out, _ := weir(t, "", append([]string{"__complete"}, args...)...)
		if code != exitOK || !strings.Contains("\n"+out, "\n"+want) {
			t.Errorf("weir %s: exit code %d\n%s\nwant %q", line, code, out, want)
		}
	}
}

func TestFailures(t *testing.T) {
	good, bad := file(t, "good.txt", "192.0.2.1\n"), file(t, "bad.txt", "192.0.2.1\nwhat\n")
	traffic := file(t, "x.pcap", pcap(1))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"replay", "--engine", "go", "--block", bad, traffic}, bad + ":2: "},
		{[]string{"replay", "--engine", "go", "--block", good + "x", traffic}, good + "x"},
		{[]string{"diff", good, filepath.Dir(good)}, "weir: " + filepath.Dir(good) + ": read "},
		{[]string{"replay", "--engine", "go", good}, "neither pcap nor pcapng"},
		{[]string{"replay", "--engine", "go", "--bits-per-entry", "1000", traffic}, "bits_per_entry"},
	} {
		code, out, log := weir(t, "", c.args...)
		if code != exitFailure || out != "" || !strings.HasPrefix(log, "weir: ") ||
			!strings.Contains(log, c.want) || strings.Count(log, "\n") != 1 {
			t.Errorf("weir %s: exit code %d\n%s%s", strings.Join(c.args, " "), code, out, log)
		}
	}
}

// Packets that pass, since a list is on trial or monitor mode is on, are not said to be blocked.
func TestReplayWouldBlock(t *testing.T) {
	trial, enforced := file(t, "trial.txt", "192.0.2.1\n"), file(t, "feed.txt", "192.0.2.2\n")
	capture := file(t, "x.pcap", pcap(1, 1, 2, 3))
	for _, c := range []struct {
		config                   string
		blocked, wouldBe, unsaid string
		lists, passed            map[string]int
	}{
		{"", "blocked by list\n  feed 1 25.00 %\n", "passed, would be blocked by list\n  trial 2 50.00 %\n", "", map[string]int{"feed": 1}, map[string]int{"trial": 2}},
		{"monitor: true\n", "", "passed, would be blocked by list\n  trial 2 50.00 %\n  feed 1 25.00 %\n", "\nblocked by list", nil, map[string]int{"feed": 1, "trial": 2}},
	} {
		config := file(t, "weir.yaml", c.config+fmt.Sprintf("interfaces: [eth0]\nlists:\n  trial: {anti_lockout: false, enforce: false, sources: [{file: %s}]}\n  feed: {anti_lockout: false, sources: [{file: %s}]}\n", trial, enforced))
		code, out, log := weir(t, "", "replay", "--engine", "go", "-c", config, capture)
		out = regexp.MustCompile(`(\S)  +`).ReplaceAllString(out, "$1 ") // but for the margin
		if code != exitOK || !strings.Contains(out, c.blocked) || !strings.Contains(out, c.wouldBe) || c.unsaid != "" && strings.Contains(out, c.unsaid) {
			t.Errorf("%q: exit code %d, %s\n%s", c.config, code, log, out)
		}
		_, out, _ = weir(t, "", "replay", "--engine", "go", "--json", "-c", config, capture)
		var got struct {
			Lists      map[string]int
			WouldBlock map[string]int `json:"would_block_lists"`
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil || !maps.Equal(got.Lists, c.lists) || !maps.Equal(got.WouldBlock, c.passed) {
			t.Errorf("%q: %v\n%s", c.config, err, out)
		}
	}
}

func TestReplay(t *testing.T) {
	block := file(t, "feed.netset.txt", "192.0.2.1\n192.0.2.2\n")
	allow := file(t, "ours.txt", "192.0.2.2\n")
	verdicts := filepath.Join(t.TempDir(), "verdicts.csv")
	code, out, log := weir(t, pcap(3, 1), "replay", "--engine", "go", "--json", "--verdicts", verdicts,
		"--block", block, "--allow", allow, file(t, "x.pcap", pcap(1, 2, 3)), "-")
	if code != exitOK || log != "" {
		t.Fatalf("exit code %d\n%s", code, log)
	}
	var summary struct {
		Packets, Bytes    int
		Verdicts, Reasons map[string]int
	}
	if err := json.Unmarshal([]byte(out), &summary); err != nil {
		t.Fatal(err)
	}
	if summary.Packets != 5 || summary.Bytes != 500 || summary.Verdicts["pass"] != 3 || summary.Verdicts["drop"] != 2 ||
		summary.Reasons["blocked"] != 2 || summary.Reasons["allowed"] != 1 || summary.Reasons["clean"] != 2 {
		t.Errorf("%s", out)
	}
	keys := map[string]any{}
	if err := json.Unmarshal([]byte(out), &keys); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"packets", "bytes", "verdicts", "reasons"} {
		if keys[name] == nil {
			t.Errorf("no %q in %s", name, out)
		}
	}

	f, err := os.Open(verdicts)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{
		{"packet", "verdict", "reason", "list"},
		{"1", "drop", "blocked", "feed.netset"},
		{"2", "pass", "allowed", ""},
		{"3", "pass", "clean", ""},
		{"4", "pass", "clean", ""},
		{"5", "drop", "blocked", "feed.netset"},
	}
	if !slices.EqualFunc(rows, want, slices.Equal) {
		t.Errorf("verdicts: %q, want %q", rows, want)
	}
}

// What was read of a truncated capture is printed.
func TestReplayHeavy(t *testing.T) {
	engines := []string{"go"}
	if os.Geteuid() == 0 {
		engines = append(engines, "kernel")
	}
	capture := pcap(1, 2, 1, 3, 1, 1, 2)
	for _, engine := range engines {
		code, out, log := weir(t, capture, "replay", "--engine", engine, "--json", "--heavy", "key=src,unit=packets,threshold=25%", "-")
		var got struct {
			Heavy []struct {
				Key            string
				Packets, Bytes int
			}
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || log != "" {
			t.Fatalf("%s: exit code %d, %v\n%s", engine, code, err, log)
		}
		h := got.Heavy
		if len(h) != 2 || h[0].Key != "192.0.2.1" || h[0].Packets != 4 || h[0].Bytes != 4*42 || h[1].Key != "192.0.2.2" || h[1].Packets != 2 {
			t.Errorf("%s: %s", engine, out)
		}
		// A prefix of destinations takes all of them together.
		_, out, _ = weir(t, capture, "replay", "--engine", engine, "--heavy", "key=dst/24,unit=bytes,threshold=100%", "-")
		if !strings.Contains(out, "\n  198.51.100.0/24  7 ") {
			t.Errorf("%s: %s", engine, out)
		}
	}
	if code, _, log := weir(t, "", "replay", "--heavy", "key=src,threshold=5/s", "-"); code != exitUsage || !strings.Contains(log, "threshold=5/s") {
		t.Errorf("exit code %d: %s", code, log)
	}
}

func TestReplayCutShort(t *testing.T) {
	whole := pcap(1, 2)
	code, out, log := weir(t, whole[:len(whole)-1], "replay", "--engine", "go", "-")
	if code != exitFailure || !strings.HasPrefix(out, "packets  1 ") || !strings.Contains(log, "cut short") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
}

func TestExplain(t *testing.T) {
	block := file(t, "feed.txt", "# a feed\n192.0.2.0/24\n192.0.2.1\nudp 198.51.100.1:* > 198.51.100.2:53\n")
	args := []string{"explain", "--exit-code", "--json", "--block", block}
	code, out, log := weir(t, "", append(args, "192.0.2.1")...)
	if code != exitDropped || log != "" {
		t.Fatalf("exit code %d\n%s%s", code, out, log)
	}
	var e struct {
		Question, Verdict string
		Answers           []struct {
			Packet, Verdict, Reason, List string
			Matches                       []struct {
				Action, List, Source, Entry string
				Line                        int
			}
			Stages []struct {
				Stage, By string
				Met       bool
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &e); err != nil {
		t.Fatal(err)
	}
	if e.Question != "192.0.2.1" || e.Verdict != "drop" || len(e.Answers) != 2 || e.Answers[1].Packet != "to 192.0.2.1" || e.Answers[1].Verdict != "pass" {
		t.Fatalf("%s", out)
	}
	a := e.Answers[0]
	if a.Packet != "from 192.0.2.1" || a.Verdict != "drop" || a.Reason != "blocked" || a.List != "feed" ||
		len(a.Matches) != 2 || len(a.Stages) != 6 || a.Stages[4].Stage != "block" || !a.Stages[4].Met || a.Stages[4].By != "list feed" {
		t.Fatalf("%s", out)
	}
	if m := a.Matches[0]; m.Source != block || m.Line != 3 || m.Entry != "192.0.2.1" || m.Action != "block" || m.List != "feed" {
		t.Errorf("most specific match: %+v", m)
	}
	if m := a.Matches[1]; m.Source != block || m.Line != 2 || m.Entry != "192.0.2.0/24" {
		t.Errorf("second match: %+v", m)
	}

	if code, out, _ := weir(t, "", append(args, "203.0.113.1")...); code != exitOK {
		t.Errorf("an unlisted address: exit code %d\n%s", code, out)
	}
	if code, out, _ := weir(t, "", append(args, "udp 198.51.100.1:9 > 198.51.100.2:53")...); code != exitDropped {
		t.Errorf("a listed flow: exit code %d\n%s", code, out)
	}
	// Without --exit-code the answer is the answer, and no failure.
	if code, out, _ := weir(t, "", "explain", "--block", block, "192.0.2.1"); code != exitOK || !strings.Contains(out, "192.0.2.1     "+block+":3\n") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

func TestStatusOfNothing(t *testing.T) {
	lab.Root(t)
	const pins = "/sys/fs/bpf/weir-test-none"
	unused := filepath.Join(t.TempDir(), "none.sock")
	if code, out, log := weir(t, "", "status", "--json", "--pins", pins, "--socket", unused); code != exitUnfiltered || log != "" ||
		strings.Join(strings.Fields(out), "") != `{"filtered":false,"daemon":null,"pins":"`+pins+`","attachments":[]}` {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, out, log := weir(t, "", "status", "--pins", pins, "--socket", unused); code != exitUnfiltered || out != "no daemon runs, and nothing is filtered: no program is pinned in "+pins+"; if weir.yaml has other pins, name them with --pins\n" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, out, _ := weir(t, "", "detach", "--pins", pins); code != exitOK || out != "nothing to detach: weir is not attached to any interface\n" {
		t.Errorf("exit code %d\n%s", code, out)
	}
	// A file system that is hidden may hold pins.
	hidden := filepath.Join(t.TempDir(), "none")
	for _, command := range []string{"status", "detach"} {
		if code, out, log := weir(t, "", command, "--pins", hidden); code != exitFailure || out != "" || !strings.Contains(log, "no BPF file system") {
			t.Errorf("%s: exit code %d\n%s%s", command, code, out, log)
		}
	}
}

func TestVersion(t *testing.T) {
	defer func(c string) { commit = c }(commit)
	commit = "0123456789abcdef"
	if code, out, _ := weir(t, "", "--version"); code != exitOK || out != "weir "+version+"\n" {
		t.Errorf("--version: exit code %d: %q", code, out)
	}
	want := build{version, commit, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
	code, out, _ := weir(t, "", "version")
	for _, line := range []string{"weir " + want.Version, "commit   " + want.Commit, "go       " + want.Go, "platform " + want.Platform} {
		if code != exitOK || !slices.Contains(strings.Split(out, "\n"), line) {
			t.Errorf("version: exit code %d: no line %q in\n%s", code, line, out)
		}
	}
	var got build
	code, out, _ = weir(t, "", "version", "--json")
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || got != want {
		t.Errorf("version --json: exit code %d: %v, %s", code, err, out)
	}
}

// What is typed by habit leads to the command that does it.
func TestSuggestions(t *testing.T) {
	for typed, want := range map[string]string{
		"ban": "did you mean block?\n", "unban": "did you mean unblock?\n", "Stop": "did you mean detach?\n",
		"staus": "did you mean status?\n", "blok": "did you mean block?\n", "tpo": "has no such command\n",
		"zzz": "has no such command\n", "relaod": "did you mean reload?\n", "explian": "did you mean explain?\n",
	} {
		for _, args := range [][]string{{typed}, {typed, "192.0.2.1"}, {"help", typed}} {
			if code, _, log := weir(t, "", args...); code != exitUsage || !strings.Contains(log, want) {
				t.Errorf("%q: exit code %d, %s", args, code, log)
			}
		}
	}
	root := newRoot()
	for typed, commands := range synonyms {
		for _, name := range commands {
			if c, _, err := root.Find([]string{name}); err != nil || c == root {
				t.Errorf("%q suggests %q, which does not exist", typed, name)
			}
		}
		if c, _, err := root.Find([]string{typed}); err == nil && c != root {
			t.Errorf("%q is a command itself", typed)
		}
	}
}
