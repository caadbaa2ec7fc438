package api

// Process is the process that a request came from, as far as the kernel says.
type Process struct {
	PID      int     `json:"pid,omitempty"`
	Command  string  `json:"command,omitempty"`   // its name, which it may choose
	Terminal string  `json:"terminal,omitempty"`  // as in pts/0
	Login    *uint32 `json:"login_uid,omitempty"` // the user who logged in, whom sudo does not change; nil: none did

	// Claimed says that the process itself has said so, since the daemon may not look.
	Claimed bool `json:"claimed,omitempty"`
}
