package verdict

import "fmt"

// MarshalText returns the reason's name.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText sets the reason by its name.
func (r *Reason) UnmarshalText(text []byte) error { return byName(r, text, 0, NumReasons-1) }

// MarshalText returns the stage's name.
func (s Stage) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText sets the stage by its name.
func (s *Stage) UnmarshalText(text []byte) error { return byName(s, text, 0, numStages-1) }

// byName sets v to the one of first … last that has the name.
func byName[T interface {
	~uint8
	String() string
}](v *T, name []byte, first, last T) error {
	for i := first; i <= last; i++ {
		if i.String() == string(name) {
			*v = i
			return nil
		}
	}
	return fmt.Errorf("unknown %T %q", *v, name)
}
