package data_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"weir/control/capture"
	"weir/tests/data"
	"weir/tests/must"

	"github.com/klauspost/compress/gzip"
)

// header is a capture without packets, of a link type below 256.
func header(link byte) []byte {
	return append([]byte("\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00"), link, 0, 0, 0)
}

// tree makes a directory with captures and other files.
func tree(t *testing.T) string {
	t.Helper()
	var archive bytes.Buffer
	z := gzip.NewWriter(&archive)
	w := tar.NewWriter(z)
	for _, m := range []struct {
		name    string
		content []byte
	}{{"x/in.pcap", header(1)}, {"x/wlan.pcapng", header(105)}, {"MANIFEST", nil}} {
		if err := w.WriteHeader(&tar.Header{Name: m.name, Mode: 0o600, Size: int64(len(m.content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(m.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		"a.pcap":       header(1),
		"d/b.pcap.gz":  header(1), // captures go by their content
		"d/c.pcap.zst": header(1),
		"d/e.pcapng":   nil,
		"d/list.gz":    nil,
		"f.tar.gz":     archive.Bytes(),
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		must.Write(t, path, content)
	}
	return dir
}

func TestWalk(t *testing.T) {
	dir := tree(t)
	var files, captures []string
	if err := data.Files(dir, func(name string, _ io.Reader) error {
		files = append(files, name)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := data.Walk(dir, func(name string, r *capture.Reader) error {
		captures = append(captures, name)
		_, err := r.Next()
		if err != io.EOF {
			t.Errorf("%s: %v", name, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"a.pcap", "d/b.pcap.gz", "d/c.pcap.zst", "d/e.pcapng", "f.tar.gz/x/in.pcap", "f.tar.gz/x/wlan.pcapng"}; !slices.Equal(files, want) {
		t.Errorf("files %q, want %q", files, want)
	}
	if want := []string{"a.pcap", "d/b.pcap.gz", "d/c.pcap.zst", "f.tar.gz/x/in.pcap"}; !slices.Equal(captures, want) {
		t.Errorf("captures %q, want %q", captures, want)
	}

	stop := errors.New("stop")
	calls := 0
	if err := data.Walk(dir, func(string, *capture.Reader) error { calls++; return stop }); err != stop || calls != 1 {
		t.Errorf("%d calls, error %v, want one call and its error", calls, err)
	}
	if err := data.Walk(filepath.Join(dir, "absent"), nil); err == nil {
		t.Error("no error for an absent directory")
	}
}

func TestCaptures(t *testing.T) {
	t.Setenv("WEIR_DATA", tree(t))
	n := 0
	data.Captures(t, func(string, *capture.Reader) { n++ })
	if n != 4 {
		t.Errorf("%d captures, want 4", n)
	}
}

func TestDirAbsent(t *testing.T) {
	t.Setenv("WEIR_DATA", filepath.Join(t.TempDir(), "absent"))
	t.Setenv("CI", "")
	t.Run("skips", func(t *testing.T) {
		defer func() {
			if !t.Skipped() {
				t.Error("not skipped")
			}
		}()
		data.Dir(t)
	})
}
