package feed

import (
	"fmt"
	"io"

	"weir/control/list"
	"weir/control/list/listfile"
)

// Read reads entries in a format. The text may be compressed; decompressed, it may
// have a number of bytes. name is used in reports and errors.
func Read(name string, src io.Reader, f Format, most int64, o listfile.Options) (list.Entries, listfile.Report, error) {
	r, err := newReader(f)
	if err != nil {
		return list.Entries{}, listfile.Report{File: name}, err
	}
	left := most
	e, report, err := r.read(name, src, &left, o)
	if left < 0 {
		err = fmt.Errorf("%s: more than %d MiB", name, most>>20)
	}
	return e, report, err
}
