// Command compress compresses the objects of the data plane in a directory, which would be 3 % of
// weir's binary, and has the generated Go there read them compressed. The object for TC is mostly
// the one for XDP, and is compressed with that as a dictionary.
//
// usage: compress DIRECTORY BYTE-ORDER…, as in compress . el eb
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/klauspost/compress/zstd"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: compress DIRECTORY BYTE-ORDER…")
		os.Exit(2)
	}
	for _, order := range os.Args[2:] {
		if err := compress(os.Args[1], "_bpf"+order); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func compress(directory, suffix string) error {
	var dictionary []byte
	for _, o := range []struct{ name, read string }{
		{"weir", "object(${1}, nil)"},
		{"weirtc", "object(${1}, dictionary)"},
	} {
		path := filepath.Join(directory, o.name+suffix)
		plain, err := os.ReadFile(path + ".o")
		if err != nil {
			return err
		}
		options := []zstd.EOption{
			zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(4 << 20),
		}
		if dictionary != nil {
			options = append(options, zstd.WithEncoderDictRaw(1, dictionary))
		}
		e, err := zstd.NewWriter(nil, options...)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path+".o.zst", e.EncodeAll(plain, nil), 0o644); err != nil {
			return err
		}
		dictionary = plain
		code, err := os.ReadFile(path + ".go")
		if err != nil {
			return err
		}
		code = regexp.MustCompile(`(?m)^(//go:embed .*\.o)$`).ReplaceAll(code, []byte("$1.zst"))
		code = regexp.MustCompile(`bytes\.NewReader\((_[A-Za-z]*Bytes)\)`).ReplaceAll(code, []byte(o.read))
		code = regexp.MustCompile(`(?m)^\t"bytes"\n`).ReplaceAll(code, nil)
		if err := os.WriteFile(path+".go", code, 0o644); err != nil {
			return err
		}
		if err := os.Remove(path + ".o"); err != nil {
			return err
		}
	}
	return nil
}
