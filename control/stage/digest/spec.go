package digest

import (
	"errors"
	"strings"
	"time"

	"weir/control/engine"
	"weir/control/quantity"
	"weir/filter/digest"
)

// Spec says what is recorded of the packets that pass each interface. A slice takes
// about 11 bits of memory a packet at a false-positive rate of 1 %, and each CPU
// has two more. The zero Spec records nothing.
type Spec struct {
	// Packets a second that an interface is expected to pass, as in 100kpps; with
	// more, there are more false positives.
	Rate quantity.Rate `yaml:"rate,required"`

	// The length of a slice of time. When a packet passed is known to a slice.
	Slice quantity.Duration `yaml:"slice"`

	// The false-positive rate of a full slice.
	FPR quantity.Share `yaml:"false_positive_rate"`

	// How long slices are kept in memory.
	Keep quantity.Duration `yaml:"keep"`

	// Slices on disk, below state_dir.
	Archive ArchiveSpec `yaml:"archive,omitempty"`
}

// ArchiveSpec says which slices are kept on disk. The zero ArchiveSpec keeps none.
type ArchiveSpec struct {
	// Bytes on disk above which the oldest slices are removed early.
	Size quantity.Size `yaml:"size,required"`

	// How long slices are kept.
	Keep quantity.Duration `yaml:"keep"`
}

// The defaults of a Spec. For a link of moderate size, with 100,000 packets a
// second, a slice has 135 kB, which a core's cache holds, and all of them 80 MB.
const (
	DefaultSlice       = time.Second
	DefaultFPR         = 0.01
	DefaultKeep        = 10 * time.Minute
	DefaultArchiveKeep = 24 * time.Hour
)

// SetDefaults sets all fields but Rate and Archive to their defaults.
func (s *Spec) SetDefaults() {
	s.Slice, s.FPR, s.Keep = quantity.Duration(DefaultSlice), DefaultFPR, quantity.Duration(DefaultKeep)
}

// SetDefaults sets Keep to its default.
func (a *ArchiveSpec) SetDefaults() { a.Keep = quantity.Duration(DefaultArchiveKeep) }

// maxSlices bounds the slices that are searched for each packet that is traced.
const maxSlices = 100_000

// On reports whether anything is recorded.
func (s *Spec) On() bool { return *s != Spec{} }

// Outgoing reports that only packets that come in are recorded.
func (*Spec) Outgoing() bool { return false }

// Shared returns no maps: each interface has its own.
func (*Spec) Shared() map[string]int { return nil }

// Check returns what is wrong with the section.
func (s *Spec) Check() (errs quantity.FieldErrors) {
	switch {
	case !s.On():
		return nil
	case s.Rate.Value == 0:
		errs.Failf("rate", "want more than 0")
	case s.Rate.Unit == quantity.Bytes || s.Rate.Unit == quantity.Bits:
		errs.Failf("rate", "%v: digests are of packets, as in 100kpps", s.Rate)
	}
	quantity.Between(&errs, "slice", s.Slice, quantity.Duration(100*time.Millisecond), quantity.Duration(time.Hour))
	if s.Archive.Size > 0 {
		quantity.Between(&errs, "archive.keep", s.Archive.Keep, quantity.Duration(time.Minute), quantity.Duration(10*365*24*time.Hour))
	}
	quantity.Between(&errs, "false_positive_rate", s.FPR, 1e-5, 0.5)
	if s.Keep < s.Slice || s.Keep/maxSlices > s.Slice {
		errs.Failf("keep", "%v is not between one slice and %d of them", s.Keep, maxSlices)
	}
	if len(errs) == 0 {
		if _, err := s.plan().Geometry(); err != nil {
			errs.Failf("slice", "%s: make slices shorter", strings.TrimPrefix(err.Error(), "digest: "))
		}
	}
	return errs
}

// CheckArchive fails where there is to be an archive, and nothing is saved.
func (s *Spec) CheckArchive(stateDir string) error {
	if s.Archive.Size > 0 && stateDir == "" {
		return errors.New("it is kept below state_dir, which is empty")
	}
	return nil
}

func (s *Spec) plan() digest.Config {
	return digest.Config{Rate: s.Rate.Value, Slice: time.Duration(s.Slice), FPR: float64(s.FPR), Keep: time.Duration(s.Keep)}
}

// Memory returns the bytes of all slices of an interface.
func (s *Spec) Memory() uint64 {
	c := s.plan()
	if !s.On() {
		return 0
	}
	g, err := c.Geometry()
	if err != nil {
		return 0
	}
	return uint64(c.Keep/c.Slice) * uint64(g.Bytes())
}

// Part returns the share of programs.
func (s *Spec) Part() (engine.Part, error) {
	p := &Part{Config: s.plan(), Archive: ArchiveConfig{Keep: time.Duration(s.Archive.Keep), Size: int64(s.Archive.Size)}}
	var err error
	p.Filter, err = p.Config.Geometry()
	return p, err
}
