// Package geo finds the autonomous systems and countries of addresses in databases of
// MaxMind's format.
package geo

import (
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/oschwald/maxminddb-golang/v2"

	"weir/control/quantity"
)

// Spec names the databases. Either may be empty.
type Spec struct {
	// Database of autonomous systems.
	ASN quantity.Path `yaml:"asn,omitempty"`

	// Database of countries.
	Country quantity.Path `yaml:"country,omitempty"`
}

// maxSize bounds a database, which is read into memory: a mapped one would end the
// process if it was truncated meanwhile.
const maxSize = 512 << 20

// Name is an autonomous system, as in AS64496, or the ISO code of a country, and its
// name.
type Name struct{ Key, Name string }

// Database is a file of names by address, which is read again when it changes. It is
// safe for concurrent use.
type Database struct {
	path string
	name func(*maxminddb.Result) (Name, error)

	mu     sync.Mutex // guards the following
	reader *maxminddb.Reader
	is     version
}

// version identifies the contents of a file.
type version struct {
	size     int64
	modified time.Time
}

func versionOf(i fs.FileInfo) version { return version{i.Size(), i.ModTime()} }

// OpenASN opens a database of autonomous systems, OpenCountry one of countries.
func OpenASN(path quantity.Path) (*Database, error) { return open(path, autonomousSystem) }

// OpenCountry opens a database of countries.
func OpenCountry(path quantity.Path) (*Database, error) { return open(path, country) }

func autonomousSystem(r *maxminddb.Result) (Name, error) {
	var v struct {
		Number uint   `maxminddb:"autonomous_system_number"`
		Name   string `maxminddb:"autonomous_system_organization"`
	}
	if err := r.Decode(&v); err != nil || v.Number == 0 {
		return Name{}, err
	}
	return Name{"AS" + strconv.FormatUint(uint64(v.Number), 10), v.Name}, nil
}

func country(r *maxminddb.Result) (Name, error) {
	var v struct {
		Country struct {
			Code  string `maxminddb:"iso_code"`
			Names struct {
				English string `maxminddb:"en"`
			} `maxminddb:"names"`
		} `maxminddb:"country"`
	}
	err := r.Decode(&v)
	return Name{v.Country.Code, v.Country.Names.English}, err
}

func open(path quantity.Path, name func(*maxminddb.Result) (Name, error)) (*Database, error) {
	d := &Database{path: string(path), name: name}
	return d, d.Refresh()
}

// Refresh reads the file again if it has changed. With an error, the last good
// contents stay.
func (d *Database) Refresh() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	info, err := os.Stat(d.path)
	if err != nil {
		return err
	}
	if d.reader != nil && versionOf(info) == d.is {
		return nil
	}
	reader, is, err := read(d.path)
	if err != nil {
		return fmt.Errorf("%s: %w", d.path, err)
	}
	if _, err := d.find(reader, netip.IPv4Unspecified()); err != nil {
		return fmt.Errorf("%s: %w", d.path, err)
	}
	d.reader, d.is = reader, is
	return nil
}

// ReadFile reads a database into memory.
func ReadFile(path string) ([]byte, error) {
	contents, _, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return contents, nil
}

func readFile(path string) (_ []byte, is version, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer would block
	if err != nil {
		return nil, is, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, is, err
	case !info.Mode().IsRegular():
		return nil, is, fmt.Errorf("want a regular file")
	case info.Size() > maxSize:
		return nil, is, fmt.Errorf("%d MiB: the maximum is %d", info.Size()>>20, maxSize>>20)
	}
	contents := make([]byte, info.Size())
	if _, err := io.ReadFull(f, contents); err != nil {
		return nil, is, fmt.Errorf("it has changed while it was read: %w", err)
	}
	return contents, versionOf(info), nil
}

func read(path string) (_ *maxminddb.Reader, is version, err error) {
	defer recovered(&err)
	contents, is, err := readFile(path)
	if err != nil {
		return nil, is, err
	}
	r, err := maxminddb.OpenBytes(contents)
	if err != nil {
		return nil, is, fmt.Errorf("want a database in MaxMind's format (.mmdb): %w", err)
	}
	return r, is, nil
}

// Find returns the name of an address, the zero Name if the database has none.
func (d *Database) Find(a netip.Addr) (Name, error) {
	d.mu.Lock()
	reader := d.reader
	d.mu.Unlock()
	n, err := d.find(reader, a)
	if err != nil {
		return Name{}, fmt.Errorf("%s: %v: %w", d.path, a, err)
	}
	return n, nil
}

func (d *Database) find(reader *maxminddb.Reader, a netip.Addr) (n Name, err error) {
	defer recovered(&err)
	if a.Is6() && reader.Metadata.IPVersion == 4 {
		return Name{}, nil
	}
	r := reader.Lookup(a)
	if r.Err() != nil || !r.Found() {
		return Name{}, r.Err()
	}
	return d.name(&r)
}

// recovered turns a panic of the reader into an error: the file may be hostile.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("the database is broken: %v", r)
	}
}
