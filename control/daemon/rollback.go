package daemon

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"

	"weir/control/config"
	"weir/control/durable"
)

// rollbackFile is the name of the file below the state directory that is there from
// a reload that is to be confirmed on, until it is confirmed or another reload
// succeeds.
const rollbackFile = "rollback.json"

// rollbackRecord has the contents of that file: a configuration that is not to be active without
// a reload, and the one that is active instead after a restart.
type rollbackRecord struct {
	Unconfirmed string `json:"unconfirmed_sha256"`
	Previous    string `json:"previous"`
}

// rollbackPath returns the path of that file, "" where nothing is saved.
func rollbackPath(c *config.Config) string { return statePath(c, rollbackFile) }

// configText returns a configuration as YAML, and the text's checksum.
func configText(c *config.Config) (text, sum string, err error) {
	var b bytes.Buffer
	if err := c.Print(&b); err != nil {
		return "", "", err
	}
	s := sha256.Sum256(b.Bytes())
	return b.String(), hex.EncodeToString(s[:]), nil
}

// saveRollback makes a restart return to the previous configuration.
func saveRollback(previous, next *config.Config) error {
	path := rollbackPath(previous)
	if path == "" {
		return nil
	}
	text, _, err := configText(previous)
	if err != nil {
		return err
	}
	_, sum, err := configText(next)
	if err != nil {
		return err
	}
	record, err := json.Marshal(rollbackRecord{sum, text})
	if err != nil {
		return err
	}
	return durable.WriteFile(path, record)
}

// forgetRollback makes a restart begin with the configuration as it is.
func forgetRollback(c *config.Config) error { return forgetDecisions(rollbackPath(c)) }

// confirmedConfig returns the configuration to start with: c, unless it was active before
// and was not confirmed. Then it is the previous one.
func confirmedConfig(c *config.Config, log *slog.Logger) (_ *config.Config, rolledBack bool) {
	path := rollbackPath(c)
	if path == "" {
		return c, false
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, false
	}
	var r rollbackRecord
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	var sum string
	if err == nil {
		_, sum, err = configText(c)
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
