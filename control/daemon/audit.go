package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"slices"
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
	maxAuditRead = 1 << 20  // bytes of it that are read at the start
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
	auditConsole         = "console" // a session that may change something was asked for
	auditConsoleEnd      = "console end"
)

// auditRecord is a line of the audit.
type auditRecord = api.AuditRecord

// byCaller sets who made the change where a request did.
func byCaller(ctx context.Context, r *auditRecord) {
	if caller, ok := api.CallerOf(ctx); ok {
		by(r, caller.UID, caller.Client)
	}
}

// by sets who made the change.
func by(r *auditRecord, uid uint32, client string) {
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

	mu   sync.Mutex    // guards the following
	last []auditRecord // the latest last, at most api.MaxAudit
}

func newAudit(c *config.Config, log *slog.Logger) *audit {
	a := &audit{log: log}
	if c.StateDir != "" {
		a.path = filepath.Join(string(c.StateDir), auditFile)
		for _, path := range []string{a.path + ".1", a.path} {
			a.last = append(a.last, readAudit(path, log)...)
		}
		a.last = a.last[max(0, len(a.last)-api.MaxAudit):]
	}
	return a
}

// readAudit returns the records at the end of a file.
func readAudit(path string, log *slog.Logger) (all []auditRecord) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var s fs.FileInfo
	if err == nil {
		defer f.Close()
		s, err = f.Stat()
	}
	if err == nil && !s.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	var end []byte
	if err == nil {
		from := max(0, s.Size()-maxAuditRead)
		end, err = io.ReadAll(io.NewSectionReader(f, from, maxAuditRead))
	}
	if err != nil {
		log.Error("earlier changes cannot be shown: "+err.Error(), "audit", path)
		return nil
	}
	for line := range bytes.Lines(end) {
		var r auditRecord
		if json.Unmarshal(line, &r) == nil { // the first may begin before, and a crash may have torn one
			all = append(all, r)
		}
	}
	return all
}

// Audit implements [api.Daemon].
func (d *Daemon) Audit(limit int) []api.AuditRecord {
	a := d.audit
	a.mu.Lock()
	defer a.mu.Unlock()
	all := slices.Clone(a.last[max(0, len(a.last)-limit):])
	slices.Reverse(all)
	return all
}

// record records a change that was made. A change that cannot be recorded stays.
func (a *audit) record(r auditRecord) {
	r.Reason, r.Source = cut(r.Reason, journal.MaxReasonLen), cut(r.Source, maxAuditText)
	for i := range r.First {
		r.First[i] = cut(r.First[i], maxAuditText)
	}
	a.mu.Lock()
	a.last = append(a.last, r)
	a.last = a.last[max(0, len(a.last)-api.MaxAudit):]
	a.mu.Unlock()
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
	by(&r, c.UID, c.Client)
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
	by(&r, c.UID, c.Client)
	d.audit.record(r)
}

// auditReload records a change of the configuration.
func (d *Daemon) auditReload(ctx context.Context, summary []string) {
	r := auditRecord{
		Time: time.Now(), Change: auditReload, Entries: len(summary), Changed: len(summary),
		First: append([]string{}, summary[:min(len(summary), maxFirst)]...), Source: "signal",
	}
	byCaller(ctx, &r)
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
	byCaller(ctx, &r)
	d.audit.record(r)
}
