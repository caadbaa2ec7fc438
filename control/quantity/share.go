package quantity

// Share is a part of a whole, from 0 to 1, such as 5%, 0.05 or 1e-4.
type Share float64

// String returns the share in percent.
func (s Share) String() string { return shifted(float64(s), -2) + "%" }

// MarshalText returns the text of String.
func (s Share) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a share, in percent or as a fraction.
func (s *Share) UnmarshalText(text []byte) error {
	const want = "0% to 100%, as in 5% or 0.05"
	digits, suffix, ok := split(text)
	exponent := 0
	if suffix == "%" {
		exponent = -2
	}
	if !ok || suffix != "" && suffix != "%" {
		return invalid("share", text, want)
	}
	f, err := scaled(digits, exponent)
	switch {
	case err == nil && f > 1 && f <= 100 && suffix == "":
		return invalid("share", text, want+": did you mean "+string(text)+"%?")
	case err != nil || f > 1 || f > 0 && f < least:
		return invalid("share", text, want)
	}
	*s = Share(f)
	return nil
}
