// Package rollback saves the configuration to return to from one that is not confirmed, so that a
// restart returns to it, too.
package rollback

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"weir/control/config"
	"weir/control/durable"
)

// file is the name of the file below the state directory that is there from
// a reload that is to be confirmed on, until it is confirmed or another reload
// succeeds.
const file = "rollback.json"

// record has the contents of that file: a configuration that is not to be active without
// a reload, and the one that is active instead after a restart.
type record struct {
	Unconfirmed string `json:"unconfirmed_sha256"`
	Previous    string `json:"previous"`
}

// Path returns the path of the file, "" where nothing is saved.
func Path(c *config.Config) string {
	if c.StateDir == "" {
		return ""
	}
	return filepath.Join(string(c.StateDir), file)
}

// textOf returns a configuration as YAML, and the text's checksum.
func textOf(c *config.Config) (text, sum string, err error) {
	var b bytes.Buffer
	if err := c.Print(&b); err != nil {
		return "", "", err
	}
	s := sha256.Sum256(b.Bytes())
	return b.String(), hex.EncodeToString(s[:]), nil
}

// Save makes a restart return to the previous configuration.
func Save(previous, next *config.Config) error {
	path := Path(previous)
	if path == "" {
		return nil
	}
	text, _, err := textOf(previous)
	if err != nil {
		return err
	}
	_, sum, err := textOf(next)
	if err != nil {
		return err
	}
	record, err := json.Marshal(record{sum, text})
	if err != nil {
		return err
	}
	return durable.WriteFile(path, record)
}

// Forget makes a restart begin with the configuration as it is.
func Forget(c *config.Config) error {
	path := Path(c)
	if path == "" {
		return nil
	}
	return durable.Remove(path)
}

// Confirmed returns the configuration to start with: c, unless it was active before
// and was not confirmed. Then it is the previous one.
func Confirmed(c *config.Config, log *slog.Logger) (_ *config.Config, rolledBack bool) {
	path := Path(c)
	if path == "" {
		return c, false
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, false
	}
	var r record
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	var sum string
	if err == nil {
		_, sum, err = textOf(c)
	}
	if err == nil && sum != r.Unconfirmed {
		return c, false // it has changed since
	}
	var previous *config.Config
	if err == nil {
		previous, err = config.Parse(path, []byte(r.Previous))
	}
	if err != nil {
		log.Error("the configuration was perhaps not confirmed, and the previous one is lost: "+err.Error(), "file", path)
		return c, false
	}
	log.Warn("the configuration was not confirmed, the previous one is active: weir reload activates it")
	return previous, true
}
