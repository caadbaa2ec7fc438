package queue

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// PlaceOf returns the path of a file beside the API's socket in which a daemon with a state
// directory leaves its Place.
func PlaceOf(socket string) string { return socket + ".state" }

// Place has the paths that a daemon leaves for commands that find none.
type Place struct {
	StateDir string
	Pins     string // "": not known
	Config   string // the file with its configuration, "": it has none

	Owner int // who has left it
}

// Text returns the contents of the file: a line each.
func (p Place) Text() []byte { return fmt.Appendf(nil, "%s\n%s\n%s\n", p.StateDir, p.Pins, p.Config) }

// PlaceAt returns what the daemon that listened on a socket has left.
func PlaceAt(socket string) (p Place, err error) {
	f, err := os.OpenFile(PlaceOf(socket), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return p, err
	}
	defer f.Close()
	if p.Owner, err = ownerOf(f); err != nil {
		return p, err
	}
	text, err := io.ReadAll(io.LimitReader(f, 3*unix.PathMax))
	if err != nil {
		return p, err
	}
	lines := append(strings.Split(string(text), "\n"), "", "")
	p.StateDir, p.Pins, p.Config = lines[0], lines[1], lines[2]
	if !filepath.IsAbs(p.StateDir) {
		return p, fmt.Errorf("%s: no absolute path: %w", f.Name(), errors.ErrUnsupported)
	}
	return p, nil
}

// At returns the queue of the daemon that listened on a socket, as it has left it.
func At(socket string) (Queue, error) {
	p, err := PlaceAt(socket)
	if err != nil {
		return Queue{}, err
	}
	return Of(p.StateDir, p.Owner), nil
}
