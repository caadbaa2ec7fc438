package binary

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ReleaseBefore is an earlier release, as a commit. Its programs impose penalties themselves.
const ReleaseBefore = "e53b179"

// ErrNoHistory means that the history of the repository is not there, as in an archive or a
// shallow clone.
var ErrNoHistory = errors.New("the history of the repository is not there")

// Former returns the path of a command of a former version. It is built once, and stays in
// dist/tests.
func Former(command, commit string) (path string, err error) {
	top, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return "", ErrNoHistory
	}
	root := string(bytes.TrimSpace(top))
	if exec.Command("git", "-C", root, "cat-file", "-e", commit+"^{commit}").Run() != nil {
		return "", ErrNoHistory
	}
	path = filepath.Join(root, "dist", "tests", "former-"+commit, command)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(path + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	dir, err := os.MkdirTemp("", "weir-former-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	archive := filepath.Join(dir, "archive.tar")
	for _, c := range [][]string{
		{"git", "-C", root, "archive", "-o", archive, commit},
		{"tar", "-xf", archive, "-C", dir},
		{"go", "build", "-C", dir, "-buildvcs=false", "-ldflags=-w", "-o", path + ".new", "./cmd/" + command},
	} {
		cmd := exec.Command(c[0], c[1:]...)
		cmd.Env = append(os.Environ(), "GOWORK=off") // make test has one, of this version
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build a former %s: %q: %w\n%s", command, c, err, out)
		}
	}
	return path, os.Rename(path+".new", path)
}
