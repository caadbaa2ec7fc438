// Package durable replaces files so that they survive a crash.
package durable

import (
	"errors"
	"os"
	"path/filepath"
)

// WriteFile replaces a file by the parts, one after another, which only its owner may
// read. After a crash at any instant there is the old file or the new one, and after
// WriteFile has returned without an error, the new one. It writes to path.new first.
func WriteFile(path string, parts ...[]byte) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if err == nil {
			_, err = f.Write(p)
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // useless, and may fill a disk
		return err
	}
	return SyncDirectory(filepath.Dir(path))
}

// SyncDirectory makes the names in a directory durable.
func SyncDirectory(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
