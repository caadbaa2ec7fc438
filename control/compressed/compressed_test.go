package compressed

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// compressions make streams of every kind that a Reader knows.
var compressions = map[string]func(t testing.TB, text string) []byte{
	"plain": func(_ testing.TB, text string) []byte { return []byte(text) },
	"gzip": func(t testing.TB, text string) []byte {
		var b bytes.Buffer
		return write(t, &b, gzip.NewWriter(&b), text)
	},
	"zstd": func(t testing.TB, text string) []byte {
		var b bytes.Buffer
		w, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		return write(t, &b, w, text)
	},
}

func write(t testing.TB, b *bytes.Buffer, w io.WriteCloser, text string) []byte {
	t.Helper()
	_, err := io.WriteString(w, text)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func read(src io.Reader) (string, error) {
	r, err := NewReader(src)
	if err != nil {
		return "", err
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	return string(text), err
}

func TestReader(t *testing.T) {
	texts := []string{"", "a", "abc", strings.Repeat("a line of a list\n", 100_000)}
	for kind, compress := range compressions {
		for _, text := range texts {
			stream := compress(t, text)
			for name, src := range map[string]io.Reader{
				"whole":        bytes.NewReader(stream),
				"in pieces":    iotest.HalfReader(bytes.NewReader(stream)),
				"error at end": iotest.DataErrReader(bytes.NewReader(stream)),
			} {
				if got, err := read(src); got != text || err != nil {
					t.Errorf("%s of %d bytes, %s: %d bytes, %v", kind, len(text), name, len(got), err)
				}
			}
			two := slices.Concat(stream, stream)
			if got, err := read(bytes.NewReader(two)); got != text+text || err != nil {
				t.Errorf("%s of %d bytes, twice: %d bytes, %v", kind, len(text), len(got), err)
			}
		}
	}
}

// No stream that was cut off passes for whole, wherever the cut. What is left
// of the magic number alone is a short stream without compression.
func TestTruncated(t *testing.T) {
	for kind, first := range map[string]int{"gzip": len(gzipMagic), "zstd": len(zstdMagic)} {
		stream := compressions[kind](t, strings.Repeat("192.0.2.1\n", 50))
		for n := first; n < len(stream); n++ {
			if _, err := read(bytes.NewReader(stream[:n])); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s, %d bytes of %d: %v", kind, n, len(stream), err)
			}
		}
	}
}

// Archives, and what is compressed or encoded in another way, are refused by name, in a
// compressed stream, too. In archives and beside them is text that would pass for a list.
func TestRefused(t *testing.T) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range []string{"blocked.txt", "never-block.txt"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: 10, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, "192.0.2.1\n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var zipped bytes.Buffer
	z := zip.NewWriter(&zipped)
	if f, err := z.CreateHeader(&zip.FileHeader{Name: "list.txt", Method: zip.Store}); err != nil {
		t.Fatal(err)
	} else if _, err = io.WriteString(f, "192.0.2.1\n"); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		archive.String():                         "a tar archive: unpack it",
		zipped.String():                          "a zip archive: unpack it",
		"7z\xbc\xaf\x27\x1c\x00\x04":             "a 7z archive",
		"Rar!\x1a\x07\x01\x00":                   "a rar archive",
		"!<arch>\nlist.txt/\n192.0.2.1\n":        "an ar archive",
		"\xfd7zXZ\x00\x00\x04":                   "compressed with xz",
		"BZh91AY&SY\x00":                         "compressed with bzip2",
		"\x04\x22\x4d\x18\x64\x40":               "compressed with lz4",
		"LZIP\x01\x0c":                           "compressed with lzip",
		"\xff\xfe1\x009\x002\x00":                "text in UTF-16",
		"\xfe\xff\x001\x009\x002":                "text in UTF-16",
		string(compressions["gzip"](t, "1.2.3")): "compressed twice",
		string(compressions["zstd"](t, "1.2.3")): "compressed twice",
	} {
		for kind, compress := range compressions {
			_, err := read(bytes.NewReader(compress(t, text)))
			if twice := want == "compressed twice"; kind == "plain" && twice {
				continue
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s of %.8q: %v, want %q", kind, text, err, want)
			}
		}
	}
}

func TestSourceFails(t *testing.T) {
	broken := errors.New("broken")
	for kind, compress := range compressions {
		stream := compress(t, "192.0.2.1\n192.0.2.2\n")
		for n := range stream {
			src := io.MultiReader(bytes.NewReader(stream[:n]), iotest.ErrReader(broken))
			if _, err := read(src); !errors.Is(err, broken) {
				t.Errorf("%s, after %d bytes: %v", kind, n, err)
			}
		}
	}
}

// A stream of some bytes may not ask for more memory than the limit.
func TestWindow(t *testing.T) {
	// frame is a zstd frame (RFC 8878) with a window of 2^log bytes, whose only
	// block is one byte as it is.
	frame := func(log int) []byte {
		const lastRawBlock = 1 | 1<<3 // of one byte
		return slices.Concat(zstdMagic, []byte{0, byte(log-10) << 3, lastRawBlock, 0, 0, 'x'})
	}
	if got, err := read(bytes.NewReader(frame(27))); got != "x" || err != nil {
		t.Errorf("at the limit: %q, %v", got, err)
	}
	if _, err := read(bytes.NewReader(frame(28))); !errors.Is(err, zstd.ErrWindowSizeExceeded) {
		t.Errorf("above the limit: %v", err)
	}
}
