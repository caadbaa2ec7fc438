package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"weir/control/config"
	"weir/control/durable"
)

// statePath returns the path of a file below the state directory, "" without one.
func statePath(c *config.Config, name string) string {
	if c.StateDir == "" {
		return ""
	}
	return filepath.Join(string(c.StateDir), name)
}

// loadDecisions reads what commands have decided from a file into v, and reports whether it could.
// Where there is a file that it cannot read, it logs what is unknown for that.
func loadDecisions(path string, v any, unknown string, log *slog.Logger) bool {
	if path == "" {
		return false
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		log.Error(unknown+" is unknown, the configuration decides: "+err.Error(), "file", path)
	}
	return err == nil
}

// saveDecisions makes what commands have decided durable. Times in v are steady.
func saveDecisions(path string, v any) error {
	if path == "" {
		return nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return durable.WriteFile(path, append(text, '\n'))
}

// forgetDecisions removes the file of decisions.
func forgetDecisions(path string) error {
	if path == "" {
		return nil
	}
	return durable.Remove(path)
}

// restoreDecisions saves decisions again where their file is missing. what names them in an error.
func restoreDecisions(path, what string, save func() error, log *slog.Logger) error {
	if !missing(path) {
		return nil
	}
	log.Error("a state file was removed while weir ran: it is written anew", "file", path)
	if err := save(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// over reports whether the end of a decision has come; nil: it has none.
func over(until *time.Time, now time.Time) bool { return until != nil && !now.Before(*until) }
