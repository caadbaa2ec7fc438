package api

import (
	"fmt"
	"strings"
	"time"
)

// Limits of a question for the audit.
const (
	DefaultAudit = 20
	MaxAudit     = 200 // that a daemon, or a hub, has in memory
)

// Audit is the last changes that were made, the latest first: GET /v1/audit.
type Audit struct {
	Changes []AuditRecord `json:"changes"`
}

// AuditRecord is a change that an operator made, or tried to make, and a line of audit.log.
type AuditRecord struct {
	Time      time.Time  `json:"time"`
	Given     *time.Time `json:"given,omitempty"` // when it was asked for, where it had to wait for the daemon
	Change    string     `json:"change"`
	List      string     `json:"list,omitempty"`
	Interface string     `json:"interface,omitempty"`   // where the change is of one
	Entries   int        `json:"entries"`               // that were named
	Changed   int        `json:"changed"`               // of those, without the ones that were there, or absent, already; sources that were accepted
	First     []string   `json:"first,omitempty"`       // entries; of a reload, changes of the configuration; sources that were accepted
	TTL       float64    `json:"ttl_seconds,omitempty"` // of entries and modes; of enforce, after which the trial ends
	Reason    string     `json:"reason,omitempty"`

	// Who: a user of this host; or the subject of a client's certificate as Source; or a user
	// without a UID, whom the console's reverse proxy has named, with the source "proxy".
	UID    *uint32 `json:"uid,omitempty"`
	User   string  `json:"user,omitempty"`
	Source string  `json:"source"` // "socket", "signal", "expiry", "process", "queue", "proxy", or the subject

	// The user's process, and who had logged in there.
	Process
	LoginName string `json:"login,omitempty"`

	Error string `json:"error,omitempty"` // why the change was refused, or failed
	More  int    `json:"more,omitempty"`  // refused changes before it that are not recorded, since they were too many
}

// Who returns who made the change, as in "alice as root" where she has used sudo.
func (r *AuditRecord) Who() string {
	who := r.Source
	switch {
	case r.UID != nil:
		who = userOf(*r.UID, r.User)
	case r.User != "":
		who = remote(r.User, r.Source)
	}
	if r.Login != nil && (r.UID == nil || *r.Login != *r.UID) {
		who = userOf(*r.Login, r.LoginName) + " as " + who
	}
	return who
}

// remote names a user who is none of this host.
func remote(user, source string) string {
	if source == "" {
		return user
	}
	return user + " (" + source + ")"
}

func userOf(uid uint32, name string) string {
	if name != "" {
		return name
	}
	return fmt.Sprintf("uid %d", uid)
}

// Changes that the text of a record depends on. Package audit has all of them.
const (
	ChangeAccept       = "accept"
	ChangeRollbackList = "rollback list"
	ChangeEnforce      = "enforce"
	ChangeConsole      = "console"
	ChangeConsoleEnd   = "console end"
)

// What returns what was changed: entries, or settings.
func (r *AuditRecord) What() string {
	switch r.Change {
	case ChangeConsole:
		return "opened the console"
	case ChangeConsoleEnd:
		return "ended the console's sessions"
	}
	what := strings.Join(r.First, ", ")
	if r.Change == ChangeAccept || r.Change == ChangeRollbackList { // First are all sources, and Entries theirs
		return what
	}
	if more := r.Entries - len(r.First); more > 0 && len(r.First) > 0 {
		what += fmt.Sprintf(" and %d more", more)
	}
	return what
}

// Lasting says what TTL means, before a duration.
func (r *AuditRecord) Lasting() string {
	if r.Change == ChangeEnforce {
		return "after"
	}
	return "for"
}

// Why returns the reason of the change, and why it failed.
func (r *AuditRecord) Why() string {
	switch {
	case r.Error == "":
		return r.Reason
	case r.Reason == "":
		return "failed: " + r.Error
	}
	return r.Reason + "; failed: " + r.Error
}
