// Lines removes the line information from the section .BTF.ext of an object: which line of the
// source each instruction is from. It is almost half of an object, and only the verifier's
// log shows it.
//
// usage: go run ./bpf/lines FILE
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
)

// header is the header of the section, struct btf_ext_header in libbpf; its offsets count from
// its end.
type header struct {
	Magic          uint16
	Version, Flags uint8
	Len            uint32

	FuncOff, FuncLen uint32
	LineOff, LineLen uint32
	CoreOff, CoreLen uint32
}

const magic = 0xeb9f

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./bpf/lines FILE")
		os.Exit(2)
	}
	if err := edit(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "lines: %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

func edit(path string) error {
	section, err := os.ReadFile(path)
	if err == nil {
		section, err = withoutLines(section)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(path, section, 0o600)
}

// withoutLines returns the section with the size of a record of line information, which
// readers expect, but without any record.
func withoutLines(section []byte) ([]byte, error) {
	var order binary.ByteOrder = binary.LittleEndian
	if len(section) > 2 && order.Uint16(section) != magic {
		order = binary.BigEndian
	}
	var h header
	if err := binary.Read(bytes.NewReader(section), order, &h); err != nil {
		return nil, err
	}
	size := uint64(binary.Size(h))
	part := func(off, n uint32) []byte {
		from := size + uint64(off)
		if from+uint64(n) > uint64(len(section)) {
			return nil
		}
		return section[from:][:n]
	}
	const recordSize = 4
	funcs, lines, core := part(h.FuncOff, h.FuncLen), part(h.LineOff, recordSize), part(h.CoreOff, h.CoreLen)
	if h.Magic != magic || uint64(h.Len) != size || len(funcs) == 0 || len(lines) == 0 {
		return nil, errors.New("the section has another layout")
	}
	h.FuncOff = 0
	h.LineOff, h.LineLen = h.FuncLen, recordSize
	h.CoreOff = h.LineOff + recordSize
	var out bytes.Buffer
	if err := binary.Write(&out, order, h); err != nil {
		return nil, err
	}
	for _, p := range [][]byte{funcs, lines, core} {
		out.Write(p)
	}
	return out.Bytes(), nil
}
