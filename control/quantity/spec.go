package quantity

import (
	"errors"
	"fmt"
	"strings"
)

// MarshalText returns packets, bytes or bits, and nothing for [AnyUnit].
func (u Unit) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

func (u Unit) String() string { return [...]string{"", "packets", "bytes", "bits"}[u] }

// UnmarshalText reads packets or bytes.
func (u *Unit) UnmarshalText(text []byte) error {
	switch string(text) {
	case "packets":
		*u = Packets
	case "bytes":
		*u = Bytes
	default:
		return fmt.Errorf("unknown unit %q: want packets or bytes", text)
	}
	return nil
}

// FieldError is an error in a setting that consists of fields.
type FieldError struct {
	Field string // "" for the whole
	Err   error
}

func (e *FieldError) Error() string {
	if e.Field == "" {
		return e.Err.Error()
	}
	return e.Field + ": " + e.Err.Error()
}

func (e *FieldError) Unwrap() error { return e.Err }

// FieldErrors collects all errors in a setting.
type FieldErrors []*FieldError

func (es FieldErrors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "; ")
}

// Failf adds an error in a field.
func (es *FieldErrors) Failf(field, format string, args ...any) {
	*es = append(*es, &FieldError{field, fmt.Errorf(format, args...)})
}

// Add adds the errors in a setting that is a field of this one: err is nil,
// FieldErrors, or an error in the whole field.
func (es *FieldErrors) Add(field string, err error) {
	var inner FieldErrors
	if !errors.As(err, &inner) {
		if err != nil {
			*es = append(*es, &FieldError{field, err})
		}
		return
	}
	for _, e := range inner {
		at := strings.Trim(field+"."+e.Field, ".") // either may be the whole
		*es = append(*es, &FieldError{at, e.Err})
	}
}

// Between adds an error unless a field's value is within bounds.
func Between[T interface {
	~int64 | ~float64
	fmt.Stringer
}](es *FieldErrors, field string, v, least, most T) {
	if v < least || v > most {
		es.Failf(field, "%v is not between %v and %v", v, least, most)
	}
}

// Unique adds an error for each of n elements with the identity of one before it.
func Unique(errs *FieldErrors, path string, n int, id func(int) any) {
	first := map[any]int{}
	for i := range n {
		if j, twice := first[id(i)]; twice {
			errs.Failf(fmt.Sprintf("%s[%d]", path, i), "the same as %s[%d]", path, j)
			continue
		}
		first[id(i)] = i
	}
}

// Distinct returns names with a number after each that equals one before it, as in "a#2".
func Distinct(names []string) []string {
	all, has := make([]string, len(names)), make(map[string]bool)
	for i, name := range names {
		all[i] = name
		for n := 2; has[all[i]]; n++ {
			all[i] = fmt.Sprintf("%s#%d", name, n)
		}
		has[all[i]] = true
	}
	return all
}

// Err returns the errors, or nil if there is none.
func (es FieldErrors) Err() error {
	if len(es) == 0 {
		return nil
	}
	return es
}
