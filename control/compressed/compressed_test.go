package compressed

import (
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
