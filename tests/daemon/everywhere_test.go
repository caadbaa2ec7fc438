package daemon

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// everywhere has the commands of weir, with arguments, and how they exit: beside a daemon; beside it in another
// network namespace; and as a user who may not reach it. S stands for its socket, other capitals for files.
const everywhere = `
allow S 192.0.2.77               0 0 1
announce S                       2 2 2
audit S                          0 0 1
block S 192.0.2.78               0 0 1
capture S -w - --duration 1s     0 0 1
check CONFIG                     0 0 1
collateral S feed                1 1 1
completion bash                  0 0 0
confirm S                        1 1 1
console S                        1 1 1
demo --json extra                2 2 2
detach --pins PINS --iface none0 1 1 1
diff LIST LIST                   0 0 1
doctor S --iface lo              4 4 4
drops S                          0 0 1
enforce S feed                   0 0 1
entries S                        0 0 1
events S                         0 0 1
explain S 192.0.2.1              0 0 1
export S feed                    0 0 1
feeds                            0 0 0
fleet lost                       1 1 1
fleet status                     1 1 1
fleet take-over                  1 1 1
flood S                          0 0 1
flush S feed                     0 0 1
help                             0 0 0
history S                        0 0 1
hub status                       1 1 1
import S feed LIST               0 0 1
join https://127.0.0.1:1 TOKEN   2 2 2
limit S                          0 0 1
lists S                          0 0 1
monitor S off                    0 0 1
multicast add S --iface lo 232.1.1.1 1 1 1
notify test                      1 1 1
plan fpr --n 1000 --m 9600       0 0 0
police S none0 --off             0 0 1
receive S                        2 2 2
refresh S feed                   0 0 1
reload S                         0 0 1
replay -c CONFIG CAPTURE         1 1 1
run --config CONFIG              1 1 1
status S                         0 0 1
top S --once                     0 0 1
trace S CAPTURE                  1 1 1
unallow S 192.0.2.77             0 0 1
unblock S 192.0.2.78             0 0 1
version                          0 0 0
weights S                        1 1 1
`

// Each command ends beside a daemon, in whatever namespace it is, and as a user who may not reach the daemon, and
// exits as its row says; where it fails, it says why, and says who may.
func TestEveryCommandEverywhere(t *testing.T) {
	const most = 31 * time.Second
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {feed: {%s}}\n", h.feed(100))
	h.start(releases[0])
	// What is closed to others is the socket, not a directory above it or the program.
	for _, dir := range []string{h.dir, filepath.Dir(h.dir), filepath.Dir(releases[0].path)} {
		if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // as /run is
			t.Fatal(err)
		}
	}
	complete, err := exec.Command(releases[0].path, "__completeNoDesc", "").Output()
	if err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{}
	for name := range strings.FieldsSeq(string(complete)) {
		missing[name] = name[0] >= 'a'
	}
	words := strings.NewReplacer(" S", " --socket "+h.path("weir.sock"), "CONFIG", h.path("weir.yaml"), "CAPTURE", h.path("capture.pcap"),
		"LIST", h.write("list.txt", []byte("192.0.2.9\n")), "PINS", string(h.pins))
	for row := range strings.Lines(strings.TrimSpace(everywhere)) {
		fields := strings.Fields(row)
		args, codes := strings.Fields(words.Replace(strings.Join(fields[:len(fields)-3], " "))), fields[len(fields)-3:]
		missing[args[0]] = false
		for i, state := range []string{"running", "another namespace", "another user"} {
			c := exec.Command(releases[0].path, args...)
			var out bytes.Buffer
			c.Stdout, c.Stderr = &out, &out
			netns := ""
			switch i {
			case 1:
				netns = h.A.Netns
			case 2:
				c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			}
			began := time.Now()
			if err := start(c, netns); err != nil {
				t.Fatal(err)
			}
			_ = c.Wait() // its exit code is judged
			code, said := c.ProcessState.ExitCode(), strings.TrimSpace(out.String())
			t.Logf("%-12s %-18s exit %d: %s", args[0], state, code, said[:min(len(said), 200)])
			if took := time.Since(began); took > most {
				t.Errorf("%v took %v %s", args, took, state)
			}
			if strconv.Itoa(code) != codes[i] {
				t.Errorf("weir %v, %s: exit %d, want %s: %s", args, state, code, codes[i], said)
			}
			if code != 0 && said == "" {
				t.Errorf("weir %v, %s: exit %d without a word", args, state, code)
			}
			if denied := strings.Contains(said, "permission denied") || strings.Contains(said, "root"); i == 2 && code != 0 && codes[0] == "0" && !denied {
				t.Errorf("weir %v, %s: it does not say who may: %s", args, state, said)
			}
		}
	}
	for name := range missing {
		if missing[name] {
			t.Errorf("weir %s has no row", name)
		}
	}
}
