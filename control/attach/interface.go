package attach

import (
	"errors"
	"log/slog"
	"time"

	"weir/control/engine"
	"weir/loader"
	"weir/loader/hooks"
	"weir/loader/netif"
)

// managedInterface is an interface that a manager filters, or waits for.
type managedInterface struct {
	netif.Target
	XDP                hooks.Hook
	*loader.Attachment           // nil while no such interface has existed
	adopted            bool      // a program was filtering when the manager found it
	index              int       // of the interface, as last seen; 0: it is gone
	named              int       // index of the interface with its name, as of followNames; 0: none
	gone               time.Time // when it was found to be gone
	problem            string    // why it is not filtered, as last logged
	retry              time.Time // when attaching, which failed, is tried again

	// engine, parts and device are set where the program may not be the current one: where hotplug
	// attached it, maybe as one of a glob, and where its interface was renamed. engine is nil
	// once the program is known to be current.
	engine *engine.Generation
	parts  uint64 // engine.Generation.Kind of the target that the program was loaded for
	device bool   // by a former name, the program may take the interface for one of its devices
}

// logOnce logs why an interface is not filtered, once while that stays the same.
func (i *managedInterface) logOnce(log *slog.Logger, err error) {
	if text := err.Error(); text != i.problem {
		i.problem = text
		log.Error(text)
	}
}

// failed notes that attaching has failed. The verifier takes too long for an
// attempt at each Follow.
func (i *managedInterface) failed(log *slog.Logger, err error) {
	i.logOnce(log, err)
	i.retry = time.Now().Add(retryInterval)
}

// filtered reports whether the interface exists and has this manager's program.
func (i *managedInterface) filtered() bool {
	return i.Attachment != nil && !i.Severed() && !i.Replaced()
}

// updateIndex notes which interface has the name now.
func (i *managedInterface) updateIndex() {
	if i.Attachment != nil {
		i.index, _ = i.Index()
	}
}

// describe updates the metadata at the attachment.
func (i *managedInterface) describe(m Metadata) error {
	old, err := MetadataOf(i.Attachment)
	if err != nil {
		return err
	}
	m.InheritCounters(old, i.Stats().Lists(nil))
	text, err := m.Encode()
	if err != nil {
		return err
	}
	return i.SetMetadata(text)
}

// Condition says whether an interface is filtered, or else why not.
type Condition string

const (
	Filtered   Condition = "filtered"
	Unpinned   Condition = "unpinned"   // it is filtered, but only until this process ends: its pins are lost, and cannot be made again
	Absent     Condition = "absent"     // it has not been there since weir began, and is waited for
	Gone       Condition = "gone"       // it no longer exists, and is waited for
	Unfiltered Condition = "unfiltered" // it exists, but attaching fails and is retried
	Detached   Condition = "detached"   // or taken over, by others: it is left alone until a reload
)

// Says returns the condition in words.
func (c Condition) Says() string {
	switch c {
	case Absent:
		return "not there yet"
	case Unpinned:
		return "not pinned, so that filtering ends with weir"
	}
	return string(c)
}

// State is the state of an interface that a manager filters, waits for or has
// given up.
type State struct {
	netif.Target
	Condition Condition
	XDP       hooks.Hook
	Problem   string // of an unfiltered one, where it is known, and of an unpinned one

	attachment *loader.Attachment // nil: there was none yet
	passing    bool               // only a glob covers it
}

// Now returns the state of this instant: an interface that is filtered may have gone
// since, or have come back and be without a program yet. There is none of one that has
// gone and that only a glob covers. Now may be called at any time.
func (s State) Now() (State, bool) {
	if s.Condition != Filtered && s.Condition != Unpinned {
		return s, true
	}
	s.Condition, s.Problem = Filtered, s.attachment.Unpinned()
	if s.Problem != "" {
		s.Condition = Unpinned
	}
	if s.attachment.Severed() {
		s.Condition, s.Problem = Gone, ""
		return s, !s.passing
	}
	return s, true
}

// Attachment returns what filters the interface, or did until it was gone; nil: nothing has
// yet. It may have been closed since.
func (s State) Attachment() *loader.Attachment { return s.attachment }

// retryInterval is how soon attaching is tried again where it failed.
const retryInterval = 2 * time.Second

// predecessor is the program that filters on an interface when a manager finds it.
type predecessor struct {
	*loader.Attachment // nil: there is none
	Metadata
	err error // why the metadata could not be read
}

func (p predecessor) Close() error {
	if p.Attachment == nil {
		return nil
	}
	return p.Attachment.Close()
}

var (
	// ErrNothingLeft says that every interface was detached or taken over by
	// others.
	ErrNothingLeft = errors.New("nothing is left to filter: every interface was detached or taken over by another daemon")

	errRunning  = errors.New("another daemon filters there")
	errTaken    = errors.New("another daemon has taken over")
	errDetached = errors.New("detached by somebody else")
)
