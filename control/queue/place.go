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

// PlaceOf returns the path of a file beside the API's socket in which a daemon leaves the
// path of its state directory.
func PlaceOf(socket string) string { return socket + ".state" }

// At returns the queue of the daemon that listened on a socket, as it has left it.
func At(socket string) (Queue, error) {
	f, err := os.OpenFile(PlaceOf(socket), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Queue{}, err
	}
	defer f.Close()
	owner, err := ownerOf(f)
	if err != nil {
		return Queue{}, err
	}
	text, err := io.ReadAll(io.LimitReader(f, unix.PathMax))
	if err != nil {
		return Queue{}, err
	}
	state := strings.TrimSpace(string(text))
	if !filepath.IsAbs(state) {
		return Queue{}, fmt.Errorf("%s: no absolute path: %w", f.Name(), errors.ErrUnsupported)
	}
	return Of(state, owner), nil
}
