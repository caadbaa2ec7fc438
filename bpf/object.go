package bpf

import (
	"bytes"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// dictionary is the object with which the one for TC is compressed, compressed.
var dictionary = _WeirBytes

// object returns an object, which is part of the binary, decompressed. with is the compressed
// object that it was compressed with, nil for none.
func object(compressed, with []byte) *bytes.Reader {
	plain, err := decompress(compressed, with)
	if err != nil {
		panic(fmt.Errorf("bpf: an object of this binary is broken: %w", err))
	}
	return bytes.NewReader(plain)
}

func decompress(compressed, with []byte) ([]byte, error) {
	options := []zstd.DOption{zstd.WithDecoderConcurrency(1)}
	if with != nil {
		plain, err := decompress(with, nil)
		if err != nil {
			return nil, err
		}
		options = append(options, zstd.WithDecoderDictRaw(1, plain))
	}
	d, err := zstd.NewReader(nil, options...)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.DecodeAll(compressed, nil)
}
