package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weir/control/fleet/enrollment"
	"weir/control/serve"
	"weir/tests/lab"
)

// command runs a command line.
func command(t *testing.T, args ...string) (code int, out, log string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = execute(t.Context(), args, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// Output that cannot be written is an error.
func TestOutputThatIsLost(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	var log bytes.Buffer
	if code := execute(t.Context(), []string{"help"}, full, &log); code != exitFailure || !strings.Contains(log.String(), "no space left on device") {
		t.Errorf("exit code %d\n%s", code, &log)
	}
}

func TestShare(t *testing.T) {
	dir := t.TempDir()
	if code, out, log := command(t, "share", dir); code != exitOK || out+log != "" {
		t.Fatalf("exit code %d\n%s%s", code, out, log)
	}
	for name, want := range map[string]string{
		"bash-completion/completions/weir-hub":    "__start_weir-hub weir-hub",
		"zsh/site-functions/_weir-hub":            "#compdef weir-hub\n",
		"fish/vendor_completions.d/weir-hub.fish": "complete -c weir-hub ",
		"man/man8/weir-hub.8":                     "/etc/weir-hub/keys\n",
		"man/man8/weir-hub-enroll.8":              "\\fB\\-\\-label\\fR \\fInames\\fR\n",
	} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: no %q: %v", name, want, err)
		}
	}
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--version"}, exitOK, "weir-hub dev"},
		{[]string{"nonsense"}, exitUsage, `"nonsense"`},
		{[]string{"help"}, exitOK, "weir-hub [command]"},
		{[]string{"help", "enroll"}, exitOK, "weir-hub enroll"},
		{[]string{"help", "nonsense"}, exitUsage, `"nonsense": weir-hub has no such command`},
		{[]string{"help", "enroll", "nonsense"}, exitUsage, `"nonsense": weir-hub enroll has no such command`},
		{[]string{"init"}, exitUsage, "DIRECTORY is missing"},
		{[]string{"enroll", "a", "b"}, exitUsage, `"b"`},
		{[]string{"enroll", "a b"}, exitUsage, `node "a b": want 1 to 63`},
		{[]string{"revoke", "edge-1", "--site", "--user", "U"}, exitUsage, "exclude each other"},
		{[]string{"enroll", "edge-1", "--config", "/does/not/exist"}, exitFailure, "no such file"},
	} {
		if code, out, log := command(t, c.args...); code != c.code || !strings.Contains(out+log, c.says) {
			t.Errorf("%q: exit code %d\n%s%s", c.args, code, out, log)
		}
	}
}

// The journal gets priorities, of the log and of the error that the hub ends with.
func TestJournal(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var s unix.Stat_t
	if err := unix.Fstat(int(w.Fd()), &s); err != nil {
		t.Fatal(err)
	}
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", s.Dev, s.Ino))
	var how process
	log := how.logging.New(w, serve.ToJournal(w)).With("list", "drop")
	log.Debug("none")
	log.Info("read")
	log.Warn("late")
	log.Error("failed")
	execute(t.Context(), []string{"run", "--config", "/does/not/exist"}, io.Discard, w)
	w.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	want := "<6>msg=read list=drop\n<4>msg=late list=drop\n<3>msg=failed list=drop\n<3>weir-hub: "
	if !strings.HasPrefix(string(text), want) {
		t.Errorf("logged\n%s", text)
	}
}

// asOwner is the variable with the directory whose owner the test becomes, in a process
// of its own.
const asOwner = "WEIR_TEST_AS_OWNER"

// Root makes keys that the owner of their directory, who runs the hub, can read.
func TestActAsOwner(t *testing.T) {
	lab.Root(t)
	const owner = 65534
	if dir := os.Getenv(asOwner); dir != "" {
		if err := actAsOwner(dir); err != nil || os.Geteuid() != owner || os.Getegid() != owner {
			t.Errorf("user %d, group %d, %v", os.Geteuid(), os.Getegid(), err)
		}
		if err := os.WriteFile(filepath.Join(dir, "key"), nil, 0o600); err != nil {
			t.Error(err)
		}
		return
	}
	for _, dir := range []string{t.TempDir(), "/does/not/exist"} {
		if err := actAsOwner(dir); err != nil || os.Geteuid() != 0 {
			t.Errorf("%s: user %d, %v", dir, os.Geteuid(), err)
		}
	}
	dir, err := os.MkdirTemp("", "weir-hub-") // others may not enter t.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chown(dir, owner, owner); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(os.Args[0], "-test.run=^TestActAsOwner$")
	c.Dir, c.Env = "/", append(os.Environ(), asOwner+"="+dir)
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Nodes begin with TLS where the hub's own broker wants it. The servers of sites speak first.
func TestEnrollTLSFirst(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "hub.yaml")
	text := fmt.Sprintf(`servers: ["tls://h:1"]
sites: ["tls://h:2"]
broker: {listen: "127.0.0.1:4222", listen_sites: "127.0.0.1:4223", tls_first: accept}
keys: %[1]s/keys
state_dir: %[1]s/state
`, dir)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		node bool // it enrolls one
		want bool
	}{
		{[]string{"init", filepath.Join(dir, "keys")}, false, false},
		{[]string{"site", "paris", "--server", "tls://h:3", "--config", config}, false, false},
		{[]string{"enroll", "direct", "--config", config}, true, true},
		{[]string{"enroll", "behind", "--site", "paris", "--config", config}, true, false},
	} {
		code, out, log := command(t, c.args...)
		if code != exitOK {
			t.Fatalf("%q: exit code %d\n%s", c.args, code, log)
		}
		if !c.node {
			continue
		}
		if n, err := enrollment.Parse([]byte(out)); err != nil || n.TLSFirst != c.want {
			t.Errorf("%q: %+v, %v, want TLS first: %t", c.args, n, err, c.want)
		}
	}
}

// The nodes are shown as they were enrolled and revoked, and none of them where one cannot be read.
func TestNodes(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "hub.yaml")
	text := fmt.Sprintf("servers: [\"tls://h:1\"]\nbroker: {listen: \"127.0.0.1:4222\"}\nkeys: %[1]s/keys\nstate_dir: %[1]s/state\n", dir)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"init", filepath.Join(dir, "keys")}, {"enroll", "edge-2", "--label", "a,b", "--config", config}, {"enroll", "edge-1", "--config", config},
		{"revoke", "edge-1", "--config", config},
	} {
		if code, _, log := command(t, args...); code != exitOK {
			t.Fatalf("%q: exit code %d\n%s", args, code, log)
		}
	}
	code, out, log := command(t, "nodes", "--config", config)
	if lines := strings.Split(out, "\n"); code != exitOK || len(lines) != 3 ||
		!strings.HasPrefix(lines[0], "edge-1 ") || !strings.Contains(lines[0], " revoked 2") ||
		!strings.HasPrefix(lines[1], "edge-2 ") || !strings.Contains(lines[1], " enrolled 2") || !strings.HasSuffix(lines[1], " a,b") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if err := os.WriteFile(filepath.Join(dir, "keys", "nodes", "edge-1.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, log := command(t, "nodes", "--config", config); code != exitFailure || out != "" || !strings.Contains(log, "edge-1.json") {
		t.Errorf("a damaged file: exit code %d\n%s%s", code, out, log)
	}
}

// A wave whose last node goes holds up all changes: check warns of it, and revoke asks.
func TestLastOfWave(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "hub.yaml")
	text := fmt.Sprintf("servers: [\"tls://h:1\"]\nbroker: {listen: \"127.0.0.1:4222\"}\nkeys: %[1]s/keys\nstate_dir: %[1]s/state\n"+
		"rollout: {waves: [{labels: [canary, first]}]}\nlists: {drop: {sources: [{file: /tmp/x}], interval: 1h}}\n", dir)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	const warning = "list drop: no node with label canary or first is enrolled"
	for _, c := range []struct {
		args []string
		code int
		says string // "": no warning
	}{
		{[]string{"init", filepath.Join(dir, "keys")}, exitOK, ""},
		{[]string{"check", config}, exitOK, "warning: " + warning},
		{[]string{"enroll", "edge-1", "--label", "canary", "--config", config}, exitOK, ""},
		{[]string{"enroll", "edge-2", "--label", "first", "--config", config}, exitOK, ""},
		{[]string{"check", config}, exitOK, ""},
		{[]string{"revoke", "edge-1", "--config", config}, exitOK, ""},
		{[]string{"revoke", "edge-2", "--config", config}, exitUsage, "after this, " + warning},
		{[]string{"label", "edge-2", "--remove", "first", "--config", config}, exitUsage, "after this, " + warning},
		{[]string{"label", "edge-2", "edge-9", "--add", "canary", "--config", config}, exitUsage, "no node \"edge-9\""},
		{[]string{"label", "edge-2", "--add", "canary", "--remove", "first", "--config", config}, exitOK, ""},
		{[]string{"label", "edge-2", "--config", config}, exitOK, "edge-2                   canary"},
		{[]string{"check", config}, exitOK, ""}, // it was not revoked
		{[]string{"revoke", "edge-2", "--yes", "--config", config}, exitOK, ""},
		{[]string{"check", config}, exitOK, "warning: " + warning},
	} {
		code, out, log := command(t, c.args...)
		if code != c.code || !strings.Contains(out+log, c.says) || c.says == "" && strings.Contains(out+log, warning) {
			t.Errorf("%q: exit code %d\n%s", c.args, code, log)
		}
	}
}
