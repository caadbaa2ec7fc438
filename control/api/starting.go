package api

import (
	"fmt"
	"time"
)

// Starting is the state of a daemon that does not filter yet, or not by its new lists.
type Starting struct {
	PID     int       `json:"pid"`
	Version string    `json:"version"`
	Since   time.Time `json:"since"`
	Doing   string    `json:"doing"` // as in "reading /srv/drop.txt"
}

// StartingError is the answer of a daemon that is starting.
type StartingError struct{ Starting Starting }

func (e *StartingError) Error() string {
	return fmt.Sprintf("the daemon is starting (PID %d, since %s, %s): ask again when it filters", e.Starting.PID, e.Starting.Since.Local().Format(time.TimeOnly), e.Starting.Doing)
}
