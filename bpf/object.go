package bpf

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
)

// object returns an object, which is part of the binary, decompressed.
func object(compressed []byte) *bytes.Reader {
	r, err := gzip.NewReader(bytes.NewReader(compressed))
	if err == nil {
		var plain []byte
		if plain, err = io.ReadAll(r); err == nil {
			return bytes.NewReader(plain)
		}
	}
	panic(fmt.Errorf("bpf: an object of this binary is broken: %w", err))
}
