// Package audit records who changed what, when and from where: at a daemon, and at the hub
// of a fleet.
package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
	"weir/control/durable"
	"weir/control/journal"
)

// Bounds of a record.
const (
	MaxText  = 256 // bytes of a text that others chose
	MaxFirst = 5   // entries of a change that are written out

	maxRefused = 30 // refused changes in a minute: more would push others out

	maxFile = 16 << 20 // bytes: some 50,000 changes
	maxRead = 1 << 20  // bytes of a file that are read at the start
)

// File is the name of the audit below the state directory. The file before it has the
// suffix ".1".
const File = "audit.log"

// The changes that the audit names beside api.Block and api.Allow. Those of rollouts have
// the names that api gives them.
const (
	Unblock        = "unblock"
	Unallow        = "unallow"
	Import         = "import"
	Flush          = "flush"
	Reload         = "reload"
	Accept         = api.ChangeAccept
	Confirm        = "confirm"
	Rollback       = "rollback"
	RollbackList   = api.ChangeRollbackList
	MonitorOn      = "monitor on"
	MonitorOff     = "monitor off"
	Police         = "police" // a limit of an interface, by a command
	PoliceOff      = "police off"
	Limit          = "limit" // of a source, by a command
	LimitOff       = "limit off"
	Enforce        = api.ChangeEnforce // the trial of a list ends
	EnforceOff     = "enforce off"
	Console        = api.ChangeConsole // a session that may change something was asked for
	ConsoleEnd     = api.ChangeConsoleEnd
	Enroll         = "enroll"   // a node of a fleet
	Join           = "join"     // of a node by a token
	Renew          = "renew"    // of the certificate of a node, by itself
	Label          = "label"    // a node
	Request        = "request"  // of an operator of a fleet, which is refused
	Operator       = "operator" // of a fleet gets a token
	RevokeOperator = "revoke operator"
	Revoke         = "revoke"
	Forget         = "forget"     // a node that is revoked
	Start          = "start"      // of the daemon
	Stop           = "stop"       // of the daemon
	Detach         = "detach"     // by weir detach
	Unreadable     = "unreadable" // a file in the queue
	EnrollSite     = "enroll site"
	RevokeSite     = "revoke site"
	NewEpoch       = "new epoch" // of a fleet: the hub's state is an older copy
	TakeBack       = "take back" // changes that the hub's state had lost
	TakeOver       = "take over" // from another hub with the same keys
	Rotate         = "rotate"    // a step of the replacement of the authority's certificate
	Copy           = "copy"      // of the keys and the state of a hub, by a standby at a new address
)

// Record is a change, and a line of the file.
type Record = api.AuditRecord

// ByCaller sets who made the change where a request did.
func ByCaller(ctx context.Context, r *Record) {
	if caller, ok := api.CallerOf(ctx); ok {
		By(r, caller.UID, caller.Client)
		ByProcess(r, caller.Process)
	}
}

// ByProcess sets the process that made the change, and who had logged in there.
func ByProcess(r *Record, p api.Process) {
	if r.Process = p; p.Login != nil {
		r.LoginName = UserName(*p.Login)
	}
}

// By sets who made the change.
func By(r *Record, uid uint32, client string) {
	user, proxied := api.ProxyUser(client)
	switch {
	case uid != api.NoUID:
		r.UID, r.User, r.Source = &uid, UserName(uid), "socket"
	case proxied:
		r.User, r.Source = user, "proxy"
	default:
		r.Source = client
	}
}

// OfTrial returns the record of a command that decides about a list on trial.
func OfTrial(list string, c api.EnforceChange) Record {
	r := Record{Change: Enforce, List: list, TTL: c.After}
	if c.Off {
		r.Change = EnforceOff
	}
	By(&r, c.UID, c.Client)
	return r
}

// UserName returns the name of a user of this host, "" if there is none.
func UserName(uid uint32) string {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return ""
	}
	return u.Username
}

// Log records what operators change: in the log, and in a file to which lines of JSON are
// appended. It is safe for concurrent use.
type Log struct {
	path string // "": there is no state directory
	log  *slog.Logger

	writing sync.Mutex
	file    *durable.File // that the last line was written to; nil after an error

	mu      sync.Mutex // guards the following
	next    *lines     // that wait for writing; nil: there are none
	last    []Record   // the latest last, at most api.MaxAudit
	minute  time.Time  // when refused began
	refused int        // recorded since
	more    int        // not recorded since
}

// New returns the audit below a state directory, "" for none.
func New(dir string, log *slog.Logger) *Log {
	a := &Log{log: log}
	if dir != "" {
		a.path = filepath.Join(dir, File)
		a.Reread()
	}
	return a
}

// Reread reads the file again, to which another process may have written. Nothing may have been
// recorded yet.
func (a *Log) Reread() {
	if a.path == "" {
		return
	}
	var all []Record
	for _, path := range []string{a.path + ".1", a.path} {
		all = append(all, read(path, a.log)...)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = all[max(0, len(all)-api.MaxAudit):]
}

// read returns the records at the end of a file.
func read(path string, log *slog.Logger) (all []Record) {
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
		from := max(0, s.Size()-maxRead)
		end, err = io.ReadAll(io.NewSectionReader(f, from, maxRead))
	}
	if err != nil {
		log.Error("earlier changes cannot be shown: "+err.Error(), "audit", path)
		return nil
	}
	for line := range bytes.Lines(end) {
		var r Record
		// The first may begin before, and a crash may have torn one, or left zeros.
		if json.Unmarshal(bytes.TrimLeft(line, "\x00"), &r) == nil {
			all = append(all, r)
		}
	}
	return all
}

// Read returns the last changes that the audit below a state directory has, the latest first,
// also while a daemon writes to it.
func Read(dir string, limit int, log *slog.Logger) []Record { return New(dir, log).Last(limit) }

// Last returns the last changes, the latest first.
func (a *Log) Last(limit int) []Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := slices.Clone(a.last[max(0, len(a.last)-limit):])
	slices.Reverse(all)
	return all
}

// Refused records a change that was not made, unless many were before it in this minute: the
// next record has their number.
func (a *Log) Refused(r Record, err error) {
	now := time.Now()
	a.mu.Lock()
	if now.Sub(a.minute) >= time.Minute {
		a.minute, a.refused = now, 0
	}
	left := a.refused == maxRefused
	if left {
		a.more++
	} else {
		a.refused++
		r.More, a.more = a.more, 0
	}
	a.mu.Unlock()
	if !left {
		r.Error = err.Error()
		a.Record(r)
	}
}

// Attempt records a change that was made, or with an error one that was not, as Refused does unless
// a part of it was.
func (a *Log) Attempt(r Record, err error) {
	if err != nil && r.Changed == 0 {
		a.Refused(r, err)
		return
	}
	if err != nil {
		r.Error = err.Error()
	}
	a.Record(r)
}

// Record records a change that was made, or with an error one that was not. A change that
// cannot be recorded stays.
func (a *Log) Record(r Record) {
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	r.Reason, r.Source, r.Error = Cut(r.Reason, journal.MaxReasonLen), Cut(r.Source, MaxText), Cut(r.Error, 2*MaxText)
	r.Command, r.Terminal = Cut(r.Command, MaxText), Cut(r.Terminal, MaxText)
	r.List, r.Interface = Cut(r.List, MaxText), Cut(r.Interface, MaxText)
	r.First = slices.Clone(r.First[:min(len(r.First), MaxFirst)])
	for i := range r.First {
		r.First[i] = Cut(r.First[i], MaxText)
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
		args = append(args, "uid", *r.UID)
	}
	if r.UID != nil || r.User != "" {
		args = append(args, "user", r.User)
	}
	if r.Login != nil {
		args = append(args, "login_uid", *r.Login, "login", r.LoginName)
	}
	if r.PID != 0 {
		args = append(args, "pid", r.PID, "command", r.Command, "terminal", r.Terminal)
	}
	args = append(args, "source", r.Source)
	if r.Given != nil {
		args = append(args, "given", *r.Given)
	}
	if r.Error != "" {
		args = append(args, "error", r.Error)
	}
	a.log.Info("audit", args...)
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

// lines are written to the file together: a storm of changes takes one sync of the disk, not one
// for each.
type lines struct {
	text    []byte
	written bool
	err     error
}

// append appends a line to the file, durably, with those that wait meanwhile.
func (a *Log) append(line []byte) error {
	a.mu.Lock()
	if a.next == nil {
		a.next = &lines{}
	}
	own := a.next
	own.text = append(own.text, line...)
	a.mu.Unlock()

	a.writing.Lock()
	defer a.writing.Unlock()
	if !own.written {
		a.mu.Lock()
		a.next = nil
		a.mu.Unlock()
		own.written, own.err = true, a.write(own.text)
	}
	return own.err
}

// write appends lines to the file, durably. The caller has locked a.writing.
func (a *Log) write(text []byte) error {
	if s, err := os.Lstat(a.path); err == nil && s.Mode().IsRegular() && s.Size()+int64(len(text)) > maxFile {
		if err := durable.Rename(a.path, a.path+".1"); err != nil {
			if _, missing := os.Lstat(a.path); !errors.Is(missing, fs.ErrNotExist) {
				return err
			}
			// It is renamed, but not durably yet: Append syncs the directory too.
		}
	}
	f, torn, err := a.open()
	if err != nil {
		return err
	}
	if torn {
		text = append([]byte{'\n'}, text...)
	}
	if err := f.Append(text); err != nil {
		return errors.Join(err, f.Close())
	}
	a.file = f
	return nil
}

// open returns the file, and whether its last line was torn. It is the one that was written to
// before, whose directory needs no other sync, unless that was replaced or another process has
// written to it.
func (a *Log) open() (*durable.File, bool, error) {
	if f := a.file; f != nil {
		a.file = nil
		if f.InPlace() {
			return f, false, nil
		}
		_ = f.Close() // what it has is durable
	}
	f, err := durable.Open(a.path, os.O_CREATE|unix.O_NOFOLLOW)
	if err != nil {
		return nil, false, err
	}
	torn, err := endsTorn(f, f.Size())
	if err != nil {
		return nil, false, errors.Join(err, f.Close())
	}
	return f, torn, nil
}

// endsTorn reports whether a file's last line has no end: its writing was
// interrupted.
func endsTorn(f io.ReaderAt, size int64) (bool, error) {
	if size == 0 {
		return false, nil
	}
	var last [1]byte
	_, err := f.ReadAt(last[:], size-1)
	return last[0] != '\n', err
}

// Cut shortens a text to a number of bytes.
func Cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && s[most]&0xc0 == 0x80 { // within a character
		most--
	}
	return s[:most] + "…"
}

// Changed returns the record of a change of entries, the first of which are given, by a
// context's caller.
func Changed(ctx context.Context, c api.Change, done api.Changed, first []string) Record {
	r := Record{
		Change: NameOf(c), List: done.List, Entries: len(c.Entries), Changed: done.Added + done.Removed,
		First: first, TTL: c.TTL, Reason: c.Reason,
	}
	if !c.Given.IsZero() {
		r.Given = &c.Given
	}
	By(&r, c.UID, c.Client)
	if caller, ok := api.CallerOf(ctx); ok {
		ByProcess(&r, caller.Process)
	}
	return r
}

// Accepted returns the record of sources that were read, whatever they contain.
func Accepted(ctx context.Context, list string, outcomes []api.FetchOutcome) Record {
	return fetched(ctx, Accept, list, outcomes)
}

// RolledBack returns the record of a list's return to earlier contents.
func RolledBack(ctx context.Context, outcome api.FetchOutcome) Record {
	return fetched(ctx, RollbackList, outcome.List, []api.FetchOutcome{outcome})
}

func fetched(ctx context.Context, change, list string, outcomes []api.FetchOutcome) Record {
	r := Record{Change: change, List: list}
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
	ByCaller(ctx, &r)
	return r
}

// NameOf returns what a change of entries is called.
func NameOf(c api.Change) string {
	switch {
	case c.Import:
		return Import
	case c.Remove && c.Action == api.Allow:
		return Unallow
	case c.Remove:
		return Unblock
	}
	return c.Action
}
