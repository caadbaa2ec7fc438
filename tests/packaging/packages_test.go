package packaging

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weir/tests/lab"
)

// A package that is newer is newer to dpkg, too, whether its commit is a release,
// comes after one or before all.
func TestVersionsSort(t *testing.T) {
	lab.Tool(t, "dpkg")
	packaged := func(version string) string {
		return strings.TrimSpace(runMake(t, "--eval", "print: ; @echo '$(PACKAGE_VERSION)'", "print", "VERSION="+version))
	}
	oldest := "0"
	for _, v := range []string{"abc", "v0.1.0-rc1", "v0.1.0-rc1-2-gabc", "v0.1.0", "v0.1.0-4-gabc", "v0.1.0-10-gabc", "v0.1.1"} {
		newer := packaged(v)
		if err := exec.Command("dpkg", "--compare-versions", newer, "gt", oldest).Run(); err != nil {
			t.Errorf("%s is packaged as %s, which is not above %s: %v", v, newer, oldest, err)
		}
		oldest = newer
	}
	// Where there is no release, the time of the commit sorts, and not its name.
	if first, second := packaged("f00"), packaged("abc"); !regexp.MustCompile(`^0\.1\.0~git[0-9]{8}\.[0-9]{6}\.f00$`).MatchString(first) ||
		first[:len(first)-3] != second[:len(second)-3] {
		t.Errorf("%s, then %s", first, second)
	}
}

// names are the packages' names.
var names = []string{"weir", "weir-hub"}

// made are the paths of a package in both formats.
type made struct{ deb, rpm string }

// packages makes the packages of a version for this machine, and returns their directory.
func packages(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	runMake(t, "packages", "OUT="+dir, "VERSION="+version, "SOURCE_DATE_EPOCH="+strconv.Itoa(epoch))
	return filepath.Join(dir, "dist")
}

// packagesIn returns the packages for this machine in a directory, by name.
func packagesIn(t *testing.T, dir string) map[string]made {
	t.Helper()
	one := func(pattern string) string {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(found) != 1 {
			t.Fatalf("packages %q, %v", found, err)
		}
		return found[0]
	}
	all := make(map[string]made)
	for _, name := range names {
		all[name] = made{
			one(name + "_*_" + runtime.GOARCH + ".deb"),
			one(name + "-[0-9]*." + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH] + ".rpm"),
		}
	}
	return all
}

// contents are files of each package, where deb and rpm are alike.
var contents = map[string][]string{
	"weir": {
		"/etc/fail2ban/action.d/weir.py",
		"/etc/weir/weir.yaml",
		"/usr/bin/weir",
		"/usr/lib/systemd/system/weir-pins.service",
		"/usr/lib/systemd/system/weir.service",
		"/usr/lib/sysusers.d/weir.conf",
		"/usr/lib/tmpfiles.d/weir.conf",
		"/usr/share/bash-completion/completions/weir",
		"/usr/share/doc/weir/LICENSE",
		"/usr/share/doc/weir/LICENSE.BSD-2-Clause",
		"/usr/share/doc/weir/LICENSE.GPL-2.0",
		"/usr/share/doc/weir/api/hub.yaml",
		"/usr/share/doc/weir/copyright",
		"/usr/share/doc/weir/observability/alerts.yaml",
		"/usr/share/fish/vendor_completions.d/weir.fish",
		"/usr/share/man/man5/weir-lists.5.gz",
		"/usr/share/man/man5/weir.yaml.5.gz",
		"/usr/share/man/man8/weir-run.8.gz",
		"/usr/share/man/man8/weir.8.gz",
		"/usr/share/zsh/site-functions/_weir",
	},
	"weir-hub": {
		"/etc/weir-hub/hub.yaml",
		"/usr/bin/weir-hub",
		"/usr/lib/systemd/system/weir-hub.service",
		"/usr/lib/sysusers.d/weir-hub.conf",
		"/usr/lib/tmpfiles.d/weir-hub.conf",
		"/usr/share/bash-completion/completions/weir-hub",
		"/usr/share/doc/weir-hub/LICENSE",
		"/usr/share/doc/weir-hub/copyright",
		"/usr/share/doc/weir-hub/fleet.md",
		"/usr/share/man/man5/hub.yaml.5.gz",
		"/usr/share/man/man8/weir-hub-enroll.8.gz",
		"/usr/share/man/man8/weir-hub.8.gz",
		"/usr/share/zsh/site-functions/_weir-hub",
	},
}

// missing returns what of the contents of a package is not among the files.
func missing(name string, files []string) []string {
	var missed []string
	for _, file := range contents[name] {
		if !slices.Contains(files, file) {
			missed = append(missed, file)
		}
	}
	return missed
}

func testDeb(t *testing.T, name, version, deb string) {
	lab.Tool(t, "dpkg-deb")
	for field, want := range map[string]string{
		"Package": name, "Version": version, "Architecture": runtime.GOARCH, "Section": "net",
		"Depends": map[string]string{"weir-hub": "weir"}[name],
	} {
		if got := strings.TrimSpace(output(t, exec.Command("dpkg-deb", "--field", deb, field))); got != want {
			t.Errorf("%s: got %q, want %q", field, got, want)
		}
	}
	dir := t.TempDir()
	output(t, exec.Command("dpkg-deb", "--extract", deb, dir))
	found := listed(t, dir)
	if missed := missing(name, found); len(missed) > 0 {
		t.Errorf("misses %q of %q", missed, found)
	}
	path := filepath.Join(dir, "usr/bin", name)
	if got := output(t, exec.Command(path, "--version")); !strings.HasPrefix(got, name+" v"+version) {
		t.Errorf("got %q", got)
	}
	licenses, err := os.ReadFile(filepath.Join(dir, "usr/share/doc", name, "copyright"))
	if err != nil || !bytes.Contains(licenses, []byte("\ngithub.com/nats-io/nats.go:\n")) ||
		bytes.Contains(licenses, []byte("\ngithub.com/nats-io/nats-server/v2:\n")) != (name == "weir-hub") {
		t.Errorf("the licenses of the libraries: %v\n%.2000s", err, licenses)
	}
	binary, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer binary.Close()
	if binary.Section(".symtab") != nil || binary.Section(".debug_info") != nil || binary.Section(".zdebug_info") != nil {
		t.Error("the binary is not stripped")
	}
	if link, err := os.ReadFile(filepath.Join(dir, "usr/share/zsh/vendor-completions/_"+name)); err != nil || len(link) == 0 {
		t.Errorf("completion for Debian's zsh: %v", err)
	}
	for _, name := range found {
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || info.ModTime().Unix() != epoch {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// dpkg installs, upgrades, removes and purges it.
func testDebLifecycle(t *testing.T, all map[string]made) {
	lab.Root(t)
	lab.Tool(t, "dpkg")
	dir, calls := t.TempDir(), filepath.Join(t.TempDir(), "calls")
	path := recorders(t, calls, "") + ":" + os.Getenv("PATH")
	pins, state := filepath.Join(dir, "sys/fs/bpf/weir"), filepath.Join(dir, "var/lib/weir")
	for _, name := range []string{"var/lib/dpkg/updates", "var/lib/dpkg/info", "run/systemd/system"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "var/lib/dpkg/status"), "", 0o644)
	dpkg := func(args ...string) []string {
		t.Helper()
		if err := os.RemoveAll(calls); err != nil {
			t.Fatal(err)
		}
		// The log, unlike the rest, would be the host's.
		cmd := exec.Command("dpkg", append([]string{
			"--root=" + dir, "--log=" + filepath.Join(dir, "log"), "--force-script-chrootless", "--force-confold",
		}, args...)...)
		cmd.Env = append(os.Environ(), "PATH="+path)
		output(t, cmd)
		b, _ := os.ReadFile(calls)
		return strings.Split(strings.TrimSpace(strings.ReplaceAll(string(b), "--root="+dir+" ", "")), "\n")
	}
	installed := []string{
		"systemd-sysusers weir.conf", "systemd-tmpfiles --create weir.conf",
		"systemctl daemon-reload", "systemctl try-restart weir.service",
	}
	check := func(what string, got, want []string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s called %q, want %q", what, got, want)
		}
	}
	check("the installation", dpkg("--install", all["weir"].deb), installed)

	config := filepath.Join(dir, "etc/weir/weir.yaml")
	write(t, config, "interfaces: [eth7]\n", 0o640)
	for _, d := range []string{pins, state} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	check("the upgrade", dpkg("--install", all["weir"].deb), installed)
	if b, err := os.ReadFile(config); err != nil || string(b) != "interfaces: [eth7]\n" || !exists(t, pins) {
		t.Errorf("after the upgrade: configuration %q, %v; pins: %v", b, err, exists(t, pins))
	}

	hub := []string{
		"systemd-sysusers weir-hub.conf", "systemd-tmpfiles --create weir-hub.conf",
		"systemctl daemon-reload", "systemctl try-restart weir-hub.service",
	}
	key := filepath.Join(dir, "etc/weir-hub/keys/fleet.key")
	check("the hub's installation", dpkg("--install", all["weir-hub"].deb), hub)
	write(t, key, "mine", 0o600)
	check("the hub's upgrade", dpkg("--install", all["weir-hub"].deb), hub)
	check("the hub's removal", dpkg("--remove", "weir-hub"), []string{
		"systemctl --no-reload disable weir-hub.service", "systemctl stop weir-hub.service", "systemctl daemon-reload",
	})
	dpkg("--purge", "weir-hub")
	if !exists(t, key) || exists(t, filepath.Join(dir, "etc/weir-hub/hub.yaml")) || exists(t, filepath.Join(dir, "usr/bin/weir-hub")) {
		t.Errorf("after the hub's purge: %q", listed(t, dir))
	}

	check("the removal", dpkg("--remove", "weir"), []string{
		"systemctl --quiet is-active weir.service", "systemctl stop weir.service", "weir detach --all",
		"systemctl --no-reload disable weir.service", "systemctl daemon-reload",
	})
	if exists(t, pins) || exists(t, filepath.Join(dir, "usr/bin/weir")) || !exists(t, config) || !exists(t, state) {
		t.Errorf("after the removal: %q", listed(t, dir))
	}
	dpkg("--purge", "weir")
	for _, name := range []string{"etc/weir", "var/lib/weir", "usr/share/zsh"} {
		if exists(t, filepath.Join(dir, name)) {
			t.Errorf("after the purge there is %s", name)
		}
	}
}

func testRPM(t *testing.T, name, version, rpm string) {
	lab.Tool(t, "rpm")
	query := func(args ...string) string {
		t.Helper()
		return output(t, exec.Command("rpm", append([]string{"--query", "--nosignature", "--package", rpm}, args...)...))
	}
	if got := query("--queryformat", "%{NAME} %{VERSION} %{RELEASE} %{BUILDHOST} %{BUILDTIME}"); got != fmt.Sprintf("%s %s 1 localhost %d", name, version, epoch) {
		t.Errorf("got %q", got)
	}
	found := strings.Split(strings.TrimSpace(query("--list")), "\n")
	if missed := missing(name, found); len(missed) > 0 {
		t.Errorf("misses %q of %q", missed, found)
	}
	// Directories of the system are not the package's.
	if i := slices.IndexFunc(found, func(name string) bool { return name == "/usr" || name == "/usr/bin" || name == "/etc" }); i >= 0 {
		t.Errorf("has %s", found[i])
	}
	configured := map[string]string{"weir": "/etc/fail2ban/action.d/weir.py\n/etc/weir/weir.yaml\n", "weir-hub": "/etc/weir-hub/hub.yaml\n"}
	if got := query("--configfiles"); got != configured[name] {
		t.Errorf("configuration: %q", got)
	}
	for _, script := range []string{"postinstall", "preuninstall", "postuninstall"} {
		if !regexp.MustCompile("(?m)^" + script + " scriptlet").MatchString(query("--scripts")) {
			t.Errorf("no script %s", script)
		}
	}
}
