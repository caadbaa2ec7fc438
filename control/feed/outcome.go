package feed

import (
	"errors"
	"fmt"
	"io"
	"time"

	"weir/control/list/listfile"
)

// Result is the result of an attempt to read a source.
type Result uint8

const (
	None      Result = iota // no attempt yet
	Loaded                  // the contents saved by an earlier process are active
	New                     // the source has changed
	Unchanged               // the source has not changed
	Failed                  // the old contents stay
)

func (r Result) String() string {
	return [...]string{"none", "loaded", "new", "unchanged", "failed"}[r]
}

// Failure is the reason why an attempt failed.
type Failure uint8

const (
	NoFailure    Failure = iota
	Unreachable          // no such file, no permission, no connection, no certificate
	BadStatus            // a status other than 200 and 304
	TimedOut             // longer than Source.Timeout
	Stalled              // no data for Source.StallTimeout
	TooLarge             // more than Source.MaxBytes, as served or decompressed, or Source.MaxEntries
	Truncated            // ended early, or was being written
	Empty                // no entries
	Garbage              // not in the feed's format, or with too many bad lines
	Shrunk               // fewer entries than Config.MaxShrink allows
	Grown                // more entries than Config.MaxGrowth allows
	Refused              // by Config.Refuse
	Uncompiled           // read, but the lists could not be activated with it
	BadChecksum          // SHA-256 does not match
	BadSignature         // not signed by the owner of the public key
	Damaged              // the saved contents are corrupted
)

func (f Failure) String() string {
	return [...]string{
		"none", "unreachable", "status", "timeout", "stalled", "too-large", "truncated",
		"empty", "garbage", "shrunk", "grown", "refused", "uncompiled", "checksum", "signature", "damaged",
	}[f]
}

// Outcome describes an attempt to read a source.
type Outcome struct {
	Source  string // [Source.String]
	Result  Result
	Failure Failure // unless Result is Failed, NoFailure
	Err     error   // with file and line if it concerns one

	// Changed reports that [Feed.Contents] returns something else than before.
	// It may after a failed attempt: a CrowdSec decision may have expired.
	Changed bool

	// Returned reports that the source has again what it had before contents that could not be
	// activated.
	Returned bool

	// Rejected reports that the source has what an operator has returned from, or the like, so that
	// its contents are unchanged.
	Rejected bool

	// Unsaved is the reason why active contents could not be saved: a restart
	// would load older ones. The next attempt tries again.
	Unsaved error

	Reports      []listfile.Report // of contents that were read
	Entries      int               // of the source that are now active
	Began, Ended time.Time

	rest       time.Duration // how long the source rests if the attempt has failed, for its work
	retryAfter time.Duration // the server's Retry-After, or the rest that applies
	valid      time.Duration // of names, how long all addresses are valid; 0: of others
}

// brokenOff reports whether the attempt failed because the answer was not complete, as
// happens to any server.
func (o *Outcome) brokenOff() bool {
	return o.Failure == Truncated || o.Failure == Stalled || o.Failure == TimedOut
}

// failure is an error with its kind.
type failure struct {
	kind       Failure
	err        error
	retryAfter time.Duration
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// fail returns a failure; format and args are as in fmt.Errorf.
func fail(kind Failure, format string, args ...any) error {
	return &failure{kind: kind, err: fmt.Errorf(format, args...)}
}

// fail records in the outcome that the attempt failed.
func (o *Outcome) fail(err error) {
	o.Result, o.Err = Failed, err
	switch f := (*failure)(nil); {
	case errors.As(err, &f):
		o.Failure, o.retryAfter = f.kind, f.retryAfter
	case errors.Is(err, io.ErrUnexpectedEOF):
		// A truncated stream or document inside a complete transfer.
		o.Failure = Truncated
	default:
		o.Failure = Garbage
	}
}
