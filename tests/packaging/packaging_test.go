// Package packaging tests what is installed: the binary, the Makefile's targets
// for it, the units, the packages and their scripts.
package packaging

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"weir/tests/lab"
)

const (
	root  = "../.."
	files = root + "/cmd/weir/packaging"

	hubFiles = root + "/cmd/weir-hub/packaging"
)

// TestMain leaves the workspace of make test: packages are made without it.
func TestMain(m *testing.M) {
	os.Setenv("GOWORK", "off")
	os.Exit(m.Run())
}

// output runs a command to its end, and fails the test unless it succeeds.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return string(out)
}

func runMake(t *testing.T, args ...string) string {
	t.Helper()
	return output(t, exec.Command("make", append([]string{"-s", "--no-print-directory", "-C", root}, args...)...))
}

func write(t testing.TB, path, content string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil
}

// listed are the files below a directory that are no directories.
func listed(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, strings.TrimPrefix(path, dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// built are stand-ins for what build and man make.
func built(t *testing.T) string {
	out := t.TempDir()
	write(t, filepath.Join(out, "weir"), "#!/bin/sh\n", 0o755)
	write(t, filepath.Join(out, "weir-hub"), "#!/bin/sh\n", 0o755)
	for _, name := range []string{
		"man/man5/hub.yaml.5", "man/man8/weir-hub.8", "zsh/site-functions/_weir-hub",
		"bash-completion/completions/weir-hub", "fish/vendor_completions.d/weir-hub.fish",
	} {
		write(t, filepath.Join(out, "dist/share-hub", name), "", 0o600)
	}
	for _, name := range []string{
		"man/man5/weir.yaml.5", "man/man8/weir.8", "man/man8/weir-run.8", "zsh/site-functions/_weir",
		"bash-completion/completions/weir", "fish/vendor_completions.d/weir.fish",
	} {
		write(t, filepath.Join(out, "dist/share", name), "", 0o600)
	}
	return "OUT=" + out
}

func TestInstall(t *testing.T) {
	dir, out := t.TempDir(), built(t)
	destination := "DESTDIR=" + dir
	runMake(t, "install", out, destination)
	want := []string{
		"/etc/fail2ban/action.d/weir.py",
		"/etc/weir-hub/hub.yaml",
		"/etc/weir/weir.yaml",
		"/usr/local/bin/weir",
		"/usr/local/bin/weir-hub",
		"/usr/local/lib/systemd/system/weir-hub.service",
		"/usr/local/lib/systemd/system/weir-pins.service",
		"/usr/local/lib/systemd/system/weir.service",
		"/usr/local/lib/sysusers.d/weir-hub.conf",
		"/usr/local/lib/sysusers.d/weir.conf",
		"/usr/local/lib/tmpfiles.d/weir-hub.conf",
		"/usr/local/lib/tmpfiles.d/weir.conf",
		"/usr/local/share/bash-completion/completions/weir",
		"/usr/local/share/bash-completion/completions/weir-hub",
		"/usr/local/share/fish/vendor_completions.d/weir-hub.fish",
		"/usr/local/share/fish/vendor_completions.d/weir.fish",
		"/usr/local/share/man/man5/hub.yaml.5",
		"/usr/local/share/man/man5/weir.yaml.5",
		"/usr/local/share/man/man8/weir-hub.8",
		"/usr/local/share/man/man8/weir-run.8",
		"/usr/local/share/man/man8/weir.8",
		"/usr/local/share/zsh/site-functions/_weir",
		"/usr/local/share/zsh/site-functions/_weir-hub",
	}
	if got := listed(t, dir); !slices.Equal(got, want) {
		t.Errorf("installed %q, want %q", got, want)
	}
	for name, want := range map[string]fs.FileMode{
		"usr/local/bin/weir":              0o755,
		"usr/local/share/man/man8/weir.8": 0o644,
		"etc/weir":                        0o750 | fs.ModeDir,
		"etc/weir/allow.d":                0o755 | fs.ModeDir,
		"usr/local/bin/weir-hub":          0o755,
		"etc/weir-hub":                    0o750 | fs.ModeDir,
		"etc/weir-hub/keys":               0o700 | fs.ModeDir,
	} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v %v, want %v", name, info, err, want)
		}
	}

	configs := []string{filepath.Join(dir, "etc/weir/weir.yaml"), filepath.Join(dir, "etc/weir-hub/hub.yaml")}
	for _, config := range configs {
		write(t, config, "mine: [eth7]\n", 0o600)
	}
	runMake(t, "install", out, destination)
	for _, config := range configs {
		if b, err := os.ReadFile(config); err != nil || string(b) != "mine: [eth7]\n" {
			t.Errorf("a second install changed the configuration: %s%v", b, err)
		}
	}
	runMake(t, "uninstall", destination)
	if got, want := listed(t, dir), []string{"/etc/fail2ban/action.d/weir.py", "/etc/weir-hub/hub.yaml", "/etc/weir/weir.yaml"}; !slices.Equal(got, want) {
		t.Errorf("uninstall left %q, want %q", got, want)
	}
}

// Below a prefix where systemd does not look, the service works too.
func TestInstallBelowPrefix(t *testing.T) {
	dir, out := t.TempDir(), built(t)
	where := []string{"DESTDIR=" + dir, "PREFIX=/opt/weir"}
	runMake(t, append(where, "install", out)...)
	want := []string{
		"/etc/fail2ban/action.d/weir.py",
		"/etc/systemd/system/weir-hub.service",
		"/etc/systemd/system/weir-pins.service",
		"/etc/systemd/system/weir.service",
		"/etc/sysusers.d/weir-hub.conf",
		"/etc/sysusers.d/weir.conf",
		"/etc/tmpfiles.d/weir-hub.conf",
		"/etc/tmpfiles.d/weir.conf",
		"/etc/weir-hub/hub.yaml",
		"/etc/weir/weir.yaml",
		"/opt/weir/bin/weir",
		"/opt/weir/bin/weir-hub",
		"/opt/weir/share/bash-completion/completions/weir",
		"/opt/weir/share/bash-completion/completions/weir-hub",
		"/opt/weir/share/fish/vendor_completions.d/weir-hub.fish",
		"/opt/weir/share/fish/vendor_completions.d/weir.fish",
		"/opt/weir/share/man/man5/hub.yaml.5",
		"/opt/weir/share/man/man5/weir.yaml.5",
		"/opt/weir/share/man/man8/weir-hub.8",
		"/opt/weir/share/man/man8/weir-run.8",
		"/opt/weir/share/man/man8/weir.8",
		"/opt/weir/share/zsh/site-functions/_weir",
		"/opt/weir/share/zsh/site-functions/_weir-hub",
	}
	if got := listed(t, dir); !slices.Equal(got, want) {
		t.Errorf("installed %q, want %q", got, want)
	}
	if _, err := exec.LookPath("systemd-analyze"); err == nil {
		for _, program := range []string{"bin/sh", "usr/bin/install", "usr/bin/chown"} { // which are everywhere else
			write(t, filepath.Join(dir, program), "", 0o755)
		}
		for _, target := range targets {
			write(t, filepath.Join(dir, "etc/systemd/system", target), "[Unit]\n", 0o644)
		}
		for _, unit := range []string{"weir.service", "weir-hub.service"} {
			if out := output(t, exec.Command("systemd-analyze", "verify", "--man=no", "--root="+dir, "/etc/systemd/system/"+unit)); out != "" {
				t.Errorf("%s:\n%s", unit, out)
			}
		}
		for _, program := range []string{"bin/sh", "usr/bin/install", "usr/bin/chown"} {
			if err := os.Remove(filepath.Join(dir, program)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := exec.LookPath("systemd-sysusers"); err == nil && os.Geteuid() == 0 {
		for _, files := range []string{files, hubFiles} {
			cmd := exec.Command(filepath.Join(files, "postinstall"))
			cmd.Env = append(os.Environ(), "DPKG_ROOT="+dir)
			output(t, cmd)
		}
		if passwd, err := os.ReadFile(filepath.Join(dir, "etc/passwd")); err != nil || !strings.Contains(string(passwd), "weir:x:") || !strings.Contains(string(passwd), "weir-hub:x:") {
			t.Errorf("passwd: %s%v", passwd, err)
		}
	}
	runMake(t, append(where, "uninstall")...)
	for _, name := range listed(t, dir) {
		if !strings.HasPrefix(name, "/etc/weir/") && name != "/etc/weir-hub/hub.yaml" && strings.Contains(name, "weir") && !strings.Contains(name, "fail2ban") {
			t.Errorf("uninstall left %s", name)
		}
	}
}

func TestInstallOfNothing(t *testing.T) {
	dir := t.TempDir()
	out, err := exec.Command("make", "-s", "-C", root, "install", "OUT="+t.TempDir(), "DESTDIR="+dir).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "make build man") || len(listed(t, dir)) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// targets are the units that every system has, by which others are ordered.
var targets = []string{"sysinit.target", "basic.target", "shutdown.target"}

func TestUnits(t *testing.T) {
	lab.Tool(t, "systemd-analyze")
	dir := t.TempDir()
	runMake(t, "install", built(t), "DESTDIR="+dir, "PREFIX=/usr")
	for _, program := range []string{"bin/sh", "usr/bin/install", "usr/bin/chown"} { // which are everywhere else
		write(t, filepath.Join(dir, program), "", 0o755)
	}
	for _, target := range targets {
		write(t, filepath.Join(dir, "usr/lib/systemd/system", target), "[Unit]\n", 0o644)
	}
	for _, unit := range []string{"weir.service", "weir-pins.service", "weir-hub.service"} {
		path := "/usr/lib/systemd/system/" + unit
		if out := output(t, exec.Command("systemd-analyze", "verify", "--man=no", "--root="+dir, path)); out != "" {
			t.Errorf("%s:\n%s", unit, out)
		}
	}
	// The exposure, from 0 to 100.
	output(t, exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=20", filepath.Join(files, "weir.service")))
	output(t, exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=15", filepath.Join(hubFiles, "weir-hub.service")))
}

// The user that the units name is there, and may read the configuration.
func TestUser(t *testing.T) {
	lab.Root(t)
	lab.Tool(t, "systemd-sysusers")
	lab.Tool(t, "systemd-tmpfiles")
	dir := t.TempDir()
	runMake(t, "install", built(t), "DESTDIR="+dir, "PREFIX=/usr")
	for range 2 { // an upgrade does it again
		for _, files := range []string{files, hubFiles} {
			cmd := exec.Command(filepath.Join(files, "postinstall"))
			cmd.Env = append(os.Environ(), "DPKG_ROOT="+dir)
			output(t, cmd)
		}
	}
	passwd, err := os.ReadFile(filepath.Join(dir, "etc/passwd"))
	if err != nil || !strings.Contains(string(passwd), "weir:x:") {
		t.Errorf("passwd: %s%v", passwd, err)
	}
	groups, err := os.ReadFile(filepath.Join(dir, "etc/group"))
	if err != nil {
		t.Fatal(err)
	}
	owned := func(name, group string, user bool, mode fs.FileMode) {
		t.Helper()
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		owner := info.Sys().(*syscall.Stat_t)
		if want := group + ":x:" + strconv.Itoa(int(owner.Gid)) + ":"; !strings.Contains("\n"+string(groups), "\n"+want) || owner.Gid == 0 || (owner.Uid != 0) != user ||
			info.Mode().Perm() != mode {
			t.Errorf("/%s: mode %v, owner %d:%d; groups:\n%s", name, info.Mode(), owner.Uid, owner.Gid, groups)
		}
	}
	owned("etc/weir", "weir", false, 0o750)
	owned("etc/weir-hub", "weir-hub", false, 0o750)
	owned("etc/weir-hub/keys", "weir-hub", true, 0o700)
}

// The scripts of packages, with everything that they call recorded.
func TestScripts(t *testing.T) {
	const (
		booted = "run/systemd/system"
		pins   = "sys/fs/bpf/weir/4026531840-eth0"
		state  = "var/lib/weir/journal"

		hub      = "../../weir-hub/packaging/"
		hubState = "var/lib/weir-hub/store"
	)
	for _, c := range []struct {
		name   string
		script string
		args   []string
		there  []string // directories in the root
		fails  string   // the call that fails
		calls  string
		gone   []string
		code   int
	}{
		{
			name: "deb is installed", script: "postinstall", args: []string{"configure", ""}, there: []string{booted},
			calls: "systemd-sysusers --root=ROOT weir.conf; systemd-tmpfiles --root=ROOT --create weir.conf; " +
				"systemctl daemon-reload; systemctl try-restart weir.service",
		},
		{
			name: "rpm is installed into an image", script: "postinstall", args: []string{"1"},
			calls: "systemd-sysusers --root=ROOT weir.conf; systemd-tmpfiles --root=ROOT --create weir.conf",
		},
		{name: "deb is upgraded", script: "preremove", args: []string{"upgrade", "2"}, there: []string{booted, pins}},
		{name: "rpm is upgraded", script: "preremove", args: []string{"1"}, there: []string{booted, pins}},
		{
			name: "deb is removed", script: "preremove", args: []string{"remove"}, there: []string{booted, pins},
			calls: "systemctl --quiet is-active weir.service; systemctl stop weir.service; weir detach --all; systemctl --root=ROOT --no-reload disable weir.service",
			gone:  []string{"sys/fs/bpf/weir"},
		},
		{
			name: "rpm is removed where systemd does not run", script: "preremove", args: []string{"0"}, there: []string{pins},
			calls: "weir detach --all; systemctl --root=ROOT --no-reload disable weir.service",
			gone:  []string{"sys/fs/bpf/weir"},
		},
		{
			name: "removed from an image", script: "preremove", args: []string{"remove"},
			calls: "systemctl --root=ROOT --no-reload disable weir.service",
		},
		{
			name: "the service cannot be stopped", script: "preremove", args: []string{"remove"}, there: []string{booted, pins}, fails: "systemctl",
			calls: "systemctl --quiet is-active weir.service; systemctl stop weir.service; weir detach --all; systemctl --root=ROOT --no-reload disable weir.service",
			gone:  []string{"sys/fs/bpf/weir"},
		},
		{
			name: "it cannot be detached", script: "preremove", args: []string{"remove"}, there: []string{pins}, fails: "weir",
			calls: "weir detach --all", code: 1,
		},
		{
			name: "a service cannot be detached", script: "preremove", args: []string{"remove"}, there: []string{booted, pins}, fails: "weir",
			calls: "systemctl --quiet is-active weir.service; systemctl stop weir.service; weir detach --all; systemctl start weir.service", code: 1,
		},
		{name: "deb was removed", script: "postremove", args: []string{"remove"}, there: []string{booted, state}, calls: "systemctl daemon-reload"},
		{name: "deb was upgraded", script: "postremove", args: []string{"upgrade", "2"}, there: []string{booted, state}},
		{name: "rpm was removed", script: "postremove", args: []string{"0"}, there: []string{booted, state}, calls: "systemctl daemon-reload"},
		{
			name: "deb is purged", script: "postremove", args: []string{"purge"}, there: []string{booted, state, "etc/weir/allow.d"},
			gone: []string{"var/lib/weir"},
		},
		{
			name: "the hub's deb is installed", script: hub + "postinstall", args: []string{"configure", ""}, there: []string{booted},
			calls: "systemd-sysusers --root=ROOT weir-hub.conf; systemd-tmpfiles --root=ROOT --create weir-hub.conf; " +
				"systemctl daemon-reload; systemctl try-restart weir-hub.service",
		},
		{name: "the hub's deb is upgraded", script: hub + "preremove", args: []string{"upgrade", "2"}, there: []string{booted}},
		{
			name: "the hub's rpm is removed", script: hub + "preremove", args: []string{"0"}, there: []string{booted},
			calls: "systemctl --root=ROOT --no-reload disable weir-hub.service; systemctl stop weir-hub.service",
		},
		{name: "the hub's deb was removed", script: hub + "postremove", args: []string{"remove"}, there: []string{booted, hubState}, calls: "systemctl daemon-reload"},
		{
			name: "the hub's deb is purged", script: hub + "postremove", args: []string{"purge"}, there: []string{booted, state, hubState, "etc/weir-hub/keys"},
			gone: []string{"var/lib/weir-hub"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, calls := t.TempDir(), filepath.Join(t.TempDir(), "calls")
			for _, name := range c.there {
				if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command(filepath.Join(files, c.script), c.args...)
			cmd.Env = []string{"DPKG_ROOT=" + dir, "PATH=" + recorders(t, calls, c.fails) + ":" + os.Getenv("PATH")}
			out, err := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != c.code || (code != 0) != strings.Contains(string(out), "still filters") {
				t.Errorf("exit code %d, %v\n%s", code, err, out)
			}
			b, _ := os.ReadFile(calls)
			got := strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(string(b)), "\n", "; "), dir, "ROOT")
			if got != c.calls {
				t.Errorf("called %q, want %q", got, c.calls)
			}
			for _, name := range c.gone {
				if exists(t, filepath.Join(dir, name)) {
					t.Errorf("%s is still there", name)
				}
			}
			for _, name := range c.there {
				if !slices.ContainsFunc(c.gone, func(g string) bool { return strings.HasPrefix(name, g) }) && !exists(t, filepath.Join(dir, name)) {
					t.Errorf("%s is gone", name)
				}
			}
		})
	}
}

// recorders are stand-ins, in a directory for PATH, that record how they are
// called. One of them fails, if that is asked for.
func recorders(t *testing.T, calls, fails string) string {
	dir := t.TempDir()
	for _, name := range []string{"systemctl", "systemd-sysusers", "systemd-tmpfiles", "weir"} {
		script := "#!/bin/sh\necho " + name + ` "$@" >>` + calls + "\n"
		if name == fails {
			script += "exit 1\n"
		}
		write(t, filepath.Join(dir, name), script, 0o755)
	}
	return dir
}
