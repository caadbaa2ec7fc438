package faults

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/wait"
)

// memoryLimit is the daemon's limit in TestBombs, maps included.
const memoryLimit = 512 << 20

// bombs are lists that would take gigabytes: their text, and how often. Package
// feed has more, each in a process of its own.
var bombs = []struct {
	name, format string
	begin, text  string
	times        int
	numbered     bool // the text has numbers of the repetition
}{
	{name: "ipv6-range", text: "1::1-fffe:ffff:ffff:ffff:ffff:ffff:ffff:fffe\n", times: 5_000_000},
	{name: "ipv6-ranges", text: "2001:db8:%[2]x::1-fffe:ffff:ffff:ffff:ffff:ffff:ffff:%[2]x\n", times: 20_000, numbered: true},
	{name: "ipv4-range", text: "0.0.0.1-255.255.255.254\n", times: 10_000_000},
	{name: "flows", text: "any 1.2.3.4:* > 5.6.7.8:*\nany 1.2.3.4:* > 5.6.7.9:*\n", times: 4_500_000},
	{name: "addresses", text: "2001:db8:1234:5678:9abc::%[1]x:%[2]x\n", times: 2_000_000, numbered: true},
	{name: "shapes", text: "tcp 10.0.0.0/%[3]d:* > 172.16.0.0/%[4]d:80\n", times: 40, numbered: true},
	{name: "commas", format: "{kind: csv, column: 1}", text: ",", times: 200_000_000},
	{name: "quotes", format: "{kind: csv, column: 1}", begin: `"`, text: "a\n", times: 100_000_000},
	{name: "brackets", format: "{kind: json, path: '.[]'}", text: "[", times: 200_000_000},
	{name: "string", format: "{kind: json, path: '.[]'}", begin: `"`, text: "a", times: 200_000_000},
	{name: "blocks", format: "nftables", text: "table {", times: 30_000_000},
	{name: "sets", format: "ipset", text: "create %[1]d-%[2]d x\n", times: 10_000_000, numbered: true},
}

// No list can take the daemon's memory, whether it comes with others or after them:
// good lists and commands go on.
func TestBombs(t *testing.T) {
	long.Only(t, "takes minutes")
	g := newGround(t)
	server := serve(t, func(path string) http.HandlerFunc {
		for _, b := range bombs {
			if path == "/"+b.name {
				return func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Encoding", "gzip")
					z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
					defer z.Close()
					io.WriteString(z, b.begin) // the client may have enough
					block := strings.Repeat(b.text, 1<<16/len(b.text)+1)
					for n := 0; n < b.times; {
						text := block
						count := len(block) / len(b.text)
						if b.numbered {
							text, count = fmt.Sprintf(b.text, n>>16, n&0xffff, 8+n%25, 12+n/25), 1
						}
						if _, err := io.WriteString(z, text); err != nil {
							return
						}
						n += count
					}
				}
			}
		}
		return text("10.0.0.1\n10.0.0.2\n")
	})
	good := fmt.Sprintf("lists:\n  good: {interval: 1s, jitter: 0s, exclude_private: false, sources: [{url: %q}]}\n", server.URL+"/good")
	g.configure(good)
	d := g.beginCollecting("")
	confine(t, d.Process.Pid, memoryLimit)
	t.Cleanup(d.kill) // before its group is removed
	dropped := []string{"10.0.0.1", "10.0.0.2"}
	alive := func(when string) {
		t.Helper()
		select {
		case <-d.ended:
			t.Fatalf("%s: it has ended:\n%s", when, strings.Join(d.log(), "\n"))
		default:
		}
		g.filters(when, dropped, []string{"10.9.9.9"})
	}
	lists := good
	for _, b := range bombs {
		format := b.format
		if format == "" {
			format = "plain"
		}
		lists += fmt.Sprintf("  %s: {interval: 1h, format: %s, sources: [{url: %q}]}\n", b.name, format, server.URL+"/"+b.name)
	}
	g.configure(lists)
	// All of them at once.
	g.patient("reload")
	alive("reloaded")
	for _, b := range bombs {
		g.untilLong(b.name+" is read", func() bool { return g.list(b.name).Feeds[0].Outcome != "none" })
		alive(b.name)
	}
	g.ask(0, "block", "10.0.0.3")
	dropped = append(dropped, "10.0.0.3")
	for _, name := range []string{"ipv6-range", "addresses", "string", "sets"} { // package feed reads each by itself
		g.patient("refresh", name)
		alive(name + " again")
	}
	status := must.Read(t, fmt.Sprintf("/proc/%d/status", d.Process.Pid))
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmHWM") {
			t.Log(strings.TrimSpace(line))
		}
	}
	for _, b := range bombs {
		f := g.list(b.name).Feeds[0]
		t.Logf("%s: %s %s %d", b.name, f.Outcome, f.Failure, f.Entries)
		if f.Outcome != "failed" && b.name != "addresses" && b.name != "shapes" { // these fit, after all
			t.Errorf("%s was accepted: %+v", b.name, f)
		}
	}
	d.stop()
}

// The daemon collects garbage early, since lists live long, unless GOGC says when, and earlier near the limit
// of its memory.
func TestGarbage(t *testing.T) {
	for gogc, want := range map[string]string{"": "25", "70": "70"} {
		t.Run("GOGC="+gogc, func(t *testing.T) {
			t.Parallel()
			g := newGround(t)
			g.configure("lists: {block: {sources: [{file: " + g.file("block", "10.0.0.1\n") + "}]}}")
			d := g.beginCollecting(gogc)
			client := http.Client{Timeout: wait.Patience, Transport: &http.Transport{
				DialContext:       func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", g.socket) },
				DisableKeepAlives: true,
			}}
			answer, err := client.Get("http://weir/metrics")
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), "\ngo_gc_gogc_percent "+want+"\n") {
				t.Errorf("go_gc_gogc_percent is not %s", want)
			}
			if _, limit, ok := strings.Cut(string(text), "\ngo_gc_gomemlimit_bytes "); !ok || strings.HasPrefix(limit, "9.223372036854775807e+18") {
				t.Error("the daemon knows no limit of its memory")
			}
			d.stop()
		})
	}
}

// beginCollecting starts weir with GOGC, which make test sets for all others, and waits until
// it filters, and answers.
func (g *ground) beginCollecting(gogc string) *daemon {
	g.t.Helper()
	d := g.run("weir")
	d.Env = append(os.Environ(), "GOGC="+gogc)
	d.start()
	d.filtering()
	g.answers()
	return d
}

// longest is how long reading what a limit ends may take, on a busy machine.
const longest = 3 * time.Minute

// patient runs a command that may take long, and fail.
func (g *ground) patient(args ...string) {
	g.t.Helper()
	ctx, stop := context.WithTimeout(g.t.Context(), longest)
	defer stop()
	out, err := exec.CommandContext(ctx, filepath.Join(binaries, "weir"), append(args, "--socket", g.socket)...).CombinedOutput()
	if ctx.Err() != nil {
		groups, _ := filepath.Glob("/sys/fs/cgroup/memory/weir-faults-*/memory.oom_control")
		for _, group := range groups {
			text, _ := os.ReadFile(group)
			g.t.Logf("%s: %s", group, text) // under_oom: the daemon stands still
		}
		g.t.Fatalf("weir %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// untilLong waits long for something.
func (g *ground) untilLong(what string, is func() bool) {
	g.t.Helper()
	for deadline := time.Now().Add(longest); !is(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			g.t.Fatalf("waited in vain: %s", what)
		}
	}
}

// confine bounds the memory that a process gets from now on, including its maps.
func confine(t *testing.T, pid, bytes int) {
	t.Helper()
	for _, version := range []struct{ parent, limit, killer string }{
		{"/sys/fs/cgroup", "memory.max", ""},
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control"},
	} {
		dir := filepath.Join(version.parent, fmt.Sprintf("weir-faults-%d", pid))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		limit := filepath.Join(dir, version.limit)
		if _, err := os.Stat(limit); err != nil {
			continue
		}
		if version.killer != "" {
			must.Write(t, filepath.Join(dir, version.killer), "1") // of processes: disabled
		}
		must.Write(t, limit, strconv.Itoa(bytes))
		must.Write(t, filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid))
		return
	}
	t.Skip("no group with a limit of memory can be made: no memory controller below /sys/fs/cgroup, of either version")
}
