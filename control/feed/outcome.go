package feed

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// Result is what came of an attempt to read a source.
type Result uint8

const (
	None      Result = iota // there was no attempt yet
	Loaded                  // the contents that an earlier process saved are in force
	New                     // the source holds something else than before
	Unchanged               // it holds the same
	Failed                  // what was in force before stays
)

func (r Result) String() string {
	return [...]string{"none", "loaded", "new", "unchanged", "failed"}[r]
}

// Failure is why an attempt failed.
type Failure uint8

const (
	NoFailure    Failure = iota
	Unreachable          // no such file, no permission, no connection, no certificate
	BadStatus            // the server answered with another status than 200 and 304
	TimedOut             // the whole took longer than Source.Timeout
	Stalled              // nothing came for Source.StallTimeout
	TooLarge             // more than Source.MaxBytes, as served or decompressed
	Truncated            // it ended too early, or was being written
	Empty                // no entry in it
	Garbage              // not in the feed's format, or with too many bad lines
	Shrunk               // fewer entries than Config.MaxShrink allows
	Refused              // by Config.Refuse
	BadChecksum          // not what the SHA-256 says
	BadSignature         // not what the owner of the public key has signed
	Damaged              // the saved contents are not what was saved
)

func (f Failure) String() string {
	return [...]string{
		"none", "unreachable", "status", "timeout", "stalled", "too-large", "truncated",
		"empty", "garbage", "shrunk", "refused", "checksum", "signature", "damaged",
	}[f]
}

// Failures are all that an attempt can fail for, for a metric's labels.
func Failures() []Failure {
	var all []Failure
	for f := NoFailure + 1; f <= Damaged; f++ {
		all = append(all, f)
	}
	return all
}

// Outcome is what came of an attempt to read a source.
type Outcome struct {
	Source  string // as [Source.String] gives it
	Result  Result
	Failure Failure // unless Result is Failed, NoFailure
	Err     error   // the failure in words, with file and line where it is about one

	// Changed reports that [Feed.Contents] returns something else than before.
	// It may after a failed attempt: a CrowdSec decision may have expired.
	Changed bool

	// Unsaved is why contents that are in force could not be saved: after a
	// restart, older ones would be. The next attempt tries again.
	Unsaved error

	Entries      int // those of the source that are now in force
	Began, Ended time.Time

	retryAfter time.Duration // for which the server asks not to be asked
}

// failure is an error whose kind is known where it happened.
type failure struct {
	kind       Failure
	err        error
	retryAfter time.Duration
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// fail makes a failure; format and args are those of fmt.Errorf.
func fail(kind Failure, format string, args ...any) error {
	return &failure{kind: kind, err: fmt.Errorf(format, args...)}
}

// fail enters into the outcome that the attempt failed.
func (o *Outcome) fail(err error) {
	o.Result, o.Err = Failed, err
	switch f := (*failure)(nil); {
	case errors.As(err, &f):
		o.Failure, o.retryAfter = f.kind, f.retryAfter
	case errors.Is(err, io.ErrUnexpectedEOF):
		// A compressed stream, or a document, that was whole on the wire.
		o.Failure = Truncated
	default:
		o.Failure = Garbage
	}
}
