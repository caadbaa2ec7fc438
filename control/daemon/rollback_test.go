package daemon

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"weir/control/config"
	"weir/tests/crash"
)

// Whenever the machine fails, it is known whether the configuration was confirmed.
func TestRollbackDurable(t *testing.T) {
	var previous string
	crash.Test{
		Begin: "confirmed",
		Work: func(t *testing.T, d *crash.Disk) {
			before, after := config.Default(), config.Default()
			before.StateDir, after.StateDir = config.Path(d.Dir), config.Path(d.Dir)
			after.Monitor = true
			var err error
			if previous, _, err = configText(before); err != nil {
				t.Fatal(err)
			}
			_ = d.Do(func() error { return saveRollback(before, after) }, "unconfirmed")
			for range 2 {
				_ = d.Do(func() error { return forgetRollback(before) }, "confirmed")
			}
		},
		Read: func(_ *testing.T, dir string, _ int) (string, error) {
			text, err := os.ReadFile(filepath.Join(dir, rollbackFile))
			if errors.Is(err, fs.ErrNotExist) {
				return "confirmed", nil
			}
			var r rollbackRecord
			if err == nil {
				err = json.Unmarshal(text, &r)
			}
			if err == nil && r.Previous != previous {
				err = errors.New("it is another configuration")
			}
			return "unconfirmed", err
		},
	}.Run(t)
}
