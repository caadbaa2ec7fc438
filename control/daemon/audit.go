package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/control/config"
	"weir/control/durable"
	"weir/control/journal"
)

// The bounds of the audit.
const (
	maxAudit     = 16 << 20 // bytes of a file: some 50,000 changes
	maxAuditText = 256      // bytes of a text that others chose
	maxFirst     = 5        // entries of a change that are written out
)

// auditFile is the name of the audit below the state directory. The file before it
// has the suffix ".1".
const auditFile = "audit.log"

// The changes that the audit names beside api.Block and api.Allow.
const (
	auditUnblock         = "unblock"
	auditUnallow         = "unallow"
	auditImport          = "import"
	auditFlush           = "flush"
	auditMulticastAdd    = "multicast add"
	auditMulticastRemove = "multicast remove"
	auditReload          = "reload"
	auditAccept          = "accept"
	auditConfirm         = "confirm"
	auditRollback        = "rollback"
	auditMonitorOn       = "monitor on"
	auditMonitorOff      = "monitor off"
)

// auditRecord is a line of the audit: a change that an operator made.
type auditRecord struct {
	Time      time.Time `json:"time"`
	Change    string    `json:"change"`
	List      string    `json:"list,omitempty"`
	Interface string    `json:"interface,omitempty"` // of multicast groups
	Entries   int       `json:"entries"`             // that were named
	Changed   int       `json:"changed"`             // of those, without the ones that were there, or absent, already; sources that were accepted
	First     []string  `json:"first,omitempty"`     // entries; of a reload, changes of the configuration; sources that were accepted
	TTL       float64   `json:"ttl_seconds,omitempty"`
	Reason    string    `json:"reason,omitempty"`

	// Who: a user of this host, or the subject of a client's certificate as Source.
	UID    *uint32 `json:"uid,omitempty"`
	User   string  `json:"user,omitempty"`
	Source string  `json:"source"` // "socket", "signal", "expiry", or the subject
}

// by sets who made the change.
func (r *auditRecord) by(uid uint32, client string) {
	switch {
	case uid != api.NoUID:
		r.UID, r.User, r.Source = &uid, userName(uid), "socket"
	default:
		r.Source = client
	}
}

// userName returns the name of a user of this host, "" if there is none.
func userName(uid uint32) string {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return ""
	}
	return u.Username
}

// firstKeys returns the first entries of a batch, as in a list.
func firstKeys(batch []journal.Change) (first []string) {
	for _, c := range batch[:min(len(batch), maxFirst)] {
		first = append(first, c.Key.String())
	}
	return first
}

// audit records what operators change: in the log, and in a file
// to which lines of JSON are appended. It is safe for concurrent use.
type audit struct {
	path string // "": there is no state directory
	log  *slog.Logger

	writing sync.Mutex
}

func newAudit(c *config.Config, log *slog.Logger) *audit {
	a := &audit{log: log}
	if c.StateDir != "" {
		a.path = filepath.Join(string(c.StateDir), auditFile)
	}
	return a
}

// record records a change that was made. A change that cannot be recorded stays.
func (a *audit) record(r auditRecord) {
	r.Reason, r.Source = cut(r.Reason, journal.MaxReasonLen), cut(r.Source, maxAuditText)
	for i := range r.First {
		r.First[i] = cut(r.First[i], maxAuditText)
	}
	args := []any{"change", r.Change}
	for _, s := range []struct{ name, value string }{{"list", r.List}, {"interface", r.Interface}} {
		if s.value != "" {
			args = append(args, s.name, s.value)
		}
	}
	args = append(args, "entries", r.Entries, "changed", r.Changed, "first", r.First)
	if r.TTL > 0 {
		args = append(args, "ttl", time.Duration(r.TTL*float64(time.Second)).String())
	}
	if r.Reason != "" {
		args = append(args, "reason", r.Reason)
	}
	if r.UID != nil {
		args = append(args, "uid", *r.UID, "user", r.User)
	}
	a.log.Info("audit", append(args, "source", r.Source)...)
	if a.path == "" {
		return
	}
	line, err := json.Marshal(r)
	if err == nil {
		err = a.append(append(line, '\n'))
	}
	if err != nil {
		a.log.Error("a change is missing in the audit: "+err.Error(), "audit", a.path)
	}
}

// append appends a line to the file, durably.
func (a *audit) append(line []byte) (err error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	if s, err := os.Lstat(a.path); err == nil && s.Mode().IsRegular() && s.Size()+int64(len(line)) > maxAudit {
		if err := os.Rename(a.path, a.path+".1"); err != nil {
			return err
		}
	}
	_, missing := os.Lstat(a.path)
	f, err := os.OpenFile(a.path, os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	s, err := f.Stat()
	if err != nil {
		return err
	}
	if !s.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", a.path)
	}
	if torn, err := endsTorn(f, s.Size()); err != nil {
		return err
	} else if torn {
		line = append([]byte{'\n'}, line...)
	}
	if _, err := f.Write(line); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if errors.Is(missing, fs.ErrNotExist) {
		return durable.SyncDirectory(filepath.Dir(a.path))
	}
	return nil
}

// endsTorn reports whether a file's last line has no end: its writing was
// interrupted.
func endsTorn(f *os.File, size int64) (bool, error) {
	if size == 0 {
		return false, nil
	}
	var last [1]byte
	_, err := f.ReadAt(last[:], size-1)
	return last[0] != '\n', err
}

// cut shortens a text to a number of bytes.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && s[most]&0xc0 == 0x80 { // within a character
		most--
	}
	return s[:most] + "…"
}

// auditChange records a change of entries.
func (d *Daemon) auditChange(c api.Change, changed api.Changed, batch []journal.Change) {
	r := auditRecord{
		Time: time.Now(), Change: changeName(c), List: changed.List, Entries: len(c.Entries), Changed: changed.Added + changed.Removed,
		First: firstKeys(batch), TTL: c.TTL, Reason: c.Reason,
	}
	r.by(c.UID, c.Client)
	d.audit.record(r)
}

// changeName returns what a change of entries is called.
func changeName(c api.Change) string {
	switch {
	case c.Import:
		return auditImport
	case c.Remove && c.Action == api.Allow:
		return auditUnallow
	case c.Remove:
		return auditUnblock
	}
	return c.Action
}

// auditMulticast records a change of multicast groups.
func (d *Daemon) auditMulticast(c api.MulticastChange, changed api.MulticastChanged) {
	r := auditRecord{
		Time: time.Now(), Change: auditMulticastAdd, Interface: c.Interface, Entries: len(c.Groups),
		Changed: changed.Added + changed.Removed, First: append([]string{}, c.Groups[:min(len(c.Groups), maxFirst)]...),
	}
	if c.Remove {
		r.Change = auditMulticastRemove
	}
	r.by(c.UID, c.Client)
	d.audit.record(r)
}

// auditReload records a change of the configuration.
func (d *Daemon) auditReload(ctx context.Context, summary []string) {
	r := auditRecord{
		Time: time.Now(), Change: auditReload, Entries: len(summary), Changed: len(summary),
		First: append([]string{}, summary[:min(len(summary), maxFirst)]...), Source: "signal",
	}
	if caller, ok := api.CallerOf(ctx); ok {
		r.by(caller.UID, caller.Client)
	}
	d.audit.record(r)
}

// auditAccept records that sources of a list were read, whatever they contain.
func (d *Daemon) auditAccept(ctx context.Context, list string, outcomes []api.FetchOutcome) {
	r := auditRecord{Time: time.Now(), Change: auditAccept, List: list}
	for _, o := range outcomes {
		if o.Outcome == api.Failed {
			continue
		}
		r.Entries += o.Entries
		if o.Changed {
			r.Changed++
		}
		r.First = append(r.First, o.Source)
	}
	r.First = r.First[:min(len(r.First), maxFirst)]
	if caller, ok := api.CallerOf(ctx); ok {
		r.by(caller.UID, caller.Client)
	}
	d.audit.record(r)
}
