package quantity

import "strconv"

// Count is a number of things, such as 65536, 64k or 10M.
type Count int64

// String returns the count with the largest SI prefix that leaves an integer.
func (c Count) String() string {
	n, suffix := int64(c), ""
	for _, p := range prefixes {
		if n == 0 || n%1000 != 0 {
			break
		}
		n, suffix = n/1000, p.name
	}
	return strconv.FormatInt(n, 10) + suffix
}

// MarshalText returns the text of String.
func (c Count) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads an integer up to 2^53, with an SI prefix or an exponent.
func (c *Count) UnmarshalText(text []byte) error {
	const want = "an integer up to 2^53, as in 2000, 64k or 10M"
	digits, suffix, ok := split(text)
	exponent, known := exponentOf(suffix)
	if !ok || !known {
		return invalid("number", text, want)
	}
	factor := int64(1)
	for range exponent {
		factor *= 10
	}
	n, ok := integer(digits, factor)
	if !ok {
		return invalid("number", text, want)
	}
	*c = Count(n)
	return nil
}

// Size is a number of bytes, such as 65536, 64MiB or 10GB.
type Size int64

var sizes = []struct {
	suffix string
	factor int64
}{ // those to print with first, from the largest
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"", 1},
	{"KB", 1e3}, {"B", 1},
}

// String returns the size with the largest unit that leaves an integer, of
// powers of two if one does.
func (s Size) String() string {
	for _, u := range sizes {
		if n := int64(s); n%u.factor == 0 && (n > 0 || u.factor == 1) {
			return strconv.FormatInt(n/u.factor, 10) + u.suffix
		}
	}
	panic("unreachable") // the factor 1 divides all
}

// MarshalText returns the text of String.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a number of bytes up to 2^53.
func (s *Size) UnmarshalText(text []byte) error {
	const want = "bytes up to 2^53, as in 65536, 64MiB or 10GB"
	digits, suffix, ok := split(text)
	if !ok {
		return invalid("size", text, want)
	}
	for _, u := range sizes {
		if suffix != u.suffix {
			continue
		}
		n, ok := integer(digits, u.factor)
		if !ok {
			return invalid("size", text, "a whole number of "+want)
		}
		*s = Size(n)
		return nil
	}
	if _, ok := exponentOf(suffix); ok {
		return invalid("size", text, want+": did you mean "+digits+upper(suffix)+"iB?")
	}
	return invalid("size", text, want)
}

// upper returns an SI prefix as binary units have it.
func upper(prefix string) string {
	if prefix == "k" {
		return "K"
	}
	return prefix
}
