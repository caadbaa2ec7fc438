package packaging

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/tests/lab"
	"weir/tests/wait"
)

// confined is how docs/containers.md runs the image: these privileges, and no others.
const confined = "--read-only --cap-drop all --cap-add BPF,NET_ADMIN,PERFMON --security-opt no-new-privileges --security-opt seccomp=unconfined"

// The image filters with the privileges and mounts that are documented, goes on when its
// container is killed, and is taken over by the next container.
func testContainer(t *testing.T, r *release) {
	lab.Tool(t, "podman")
	doc, err := os.ReadFile(filepath.Join(root, "docs/containers.md"))
	if err != nil || !strings.Contains(strings.Join(strings.Fields(strings.ReplaceAll(string(doc), "\\\n", " ")), " "), confined) {
		t.Errorf("docs/containers.md does not run it with %s: %v", confined, err)
	}
	l := lab.New(t)
	dir := t.TempDir()
	for _, name := range []string{"bpf", "etc", "lib"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bpffs := filepath.Join(dir, "bpf")
	if err := unix.Mount("bpf", bpffs, "bpf", 0, ""); err != nil {
		t.Fatalf("mount a BPF file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(bpffs, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	write(t, filepath.Join(dir, "etc/weir.yaml"), fmt.Sprintf("interfaces: [%s]\nlists: {drop: {sources: [{file: /etc/weir/drop.txt}]}}\n", l.B.Iface), 0o644)
	write(t, filepath.Join(dir, "etc/drop.txt"), "192.0.2.0/24\n", 0o644)

	podman := func(args ...string) (string, error) {
		cmd := exec.Command("podman", append([]string{
			"--root", filepath.Join(dir, "storage"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs",
			"--cgroup-manager", "cgroupfs", "--events-backend", "none",
		}, args...)...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	do := func(args ...string) string {
		t.Helper()
		out, err := podman(args...)
		if err != nil {
			t.Fatalf("podman %q: %v\n%s", args, err, out)
		}
		return out
	}
	t.Cleanup(func() {
		if out, err := podman("rm", "--all", "--force", "--time", "0"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		_, _ = podman("rmi", "--all", "--force")
	})
	if out := do("load", "--input", filepath.Join(r.dir, "weir-"+r.version+"-oci.tar")); !strings.Contains(out, "localhost/weir:"+r.version) {
		t.Errorf("loaded as %s", out)
	}
	// Below what this test may set: it may be in a container itself.
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	run := func(privileges string, args ...string) []string {
		return slices.Concat([]string{
			"run", "--network", "ns:/run/netns/" + l.B.Netns,
			"--ulimit", fmt.Sprintf("nofile=%d:%d", files.Max, files.Max), "--ulimit", "nproc=4096:4096",
			"--volume", bpffs + ":/sys/fs/bpf", "--volume", filepath.Join(dir, "etc") + ":/etc/weir:ro",
			"--volume", filepath.Join(dir, "lib") + ":/var/lib/weir",
		}, strings.Fields(privileges), args)
	}
	image := "localhost/weir:" + r.version
	p := lab.NewProbe(t, l)
	through := func(source string) bool { return p.Pass(t, frameFrom(source))[0] != nil }
	filters := func(what string) {
		t.Helper()
		for deadline := wait.Deadline(); through(listedSource); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				logs, _ := podman("logs", "weir")
				t.Fatalf("%s: listed packets pass\n%s", what, logs)
			}
		}
		if !through(cleanSource) {
			t.Errorf("%s: unlisted packets do not pass", what)
		}
	}

	// Each of the privileges is needed.
	for _, needed := range []string{"BPF,", "NET_ADMIN,", ",PERFMON"} {
		out, err := podman(run(strings.Replace(confined, needed, "", 1), "--rm", "--entrypoint", "/usr/bin/weir", image,
			"run", "--iface", l.B.Iface, "--block", "/etc/weir/drop.txt")...)
		if _, failed := errors.AsType[*exec.ExitError](err); !failed || !strings.Contains(out, "weir: ") {
			t.Errorf("without %s: %v\n%s", needed, err, out)
		}
	}

	do(run(confined, "--detach", "--name", "weir", image)...)
	filters("it runs")
	if out := do("exec", "weir", "weir", "status"); !strings.Contains(out, "weir v"+r.version) || !strings.Contains(out, l.B.Iface) {
		t.Errorf("status:\n%s", out)
	}
	do("exec", "weir", "weir", "block", "198.51.100.1")
	do("kill", "--signal", "KILL", "weir")
	do("rm", "weir")
	if through(listedSource) || through("198.51.100.1") || !through(cleanSource) {
		t.Error("the filter did not stay when its container was killed")
	}
	do(run(confined, "--detach", "--name", "weir", image)...)
	filters("the next container")
	do("exec", "weir", "weir", "unblock", "198.51.100.1") // or it waits for the daemon, which starts
	for deadline := wait.Deadline(); !through("198.51.100.1"); time.Sleep(50 * time.Millisecond) {
		if through(listedSource) {
			t.Error("a listed packet has passed between two containers")
		}
		if time.Now().After(deadline) {
			t.Fatal("the next container: an entry that was removed still blocks")
		}
	}
	filters("the next container")
	do("stop", "--time", "20", "weir")
	if through(listedSource) {
		t.Error("the filter did not stay when its container was stopped")
	}
	do(run(confined, "--rm", image, "detach", "--all")...)
	if !through(listedSource) {
		t.Error("listed packets do not pass, although weir was detached")
	}
}
