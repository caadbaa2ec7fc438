// Package quantity contains the numbers of weir's settings as people write them:
// rates such as 50kpps, 10Mbit/s or 10k/s, durations such as 1d12h, sizes such as
// 64MiB, shares such as 0.1%, and counts such as 10M.
//
// Each type implements [encoding.TextMarshaler] and [encoding.TextUnmarshaler], so
// flags, YAML and JSON read and write the same text. For every value that can be
// read, reading what MarshalText returns yields that value again. UnmarshalText
// refuses signs, NaN, infinities and text of more than [MaxText] bytes, and leaves
// its receiver unchanged when it fails.
package quantity

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// MaxText bounds the length of a quantity's text, in bytes.
const MaxText = 64

// maxInteger bounds counts and sizes: JSON and float64 represent all integers up
// to it.
const maxInteger = 1 << 53

// least bounds rates and shares from below, unless they are 0: their text without
// an exponent fits in MaxText.
const least = 1e-15

// number matches a decimal number, with an exponent too short to take long, and
// what follows it.
var number = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)(.*)$`)

// split separates a number from its suffix.
func split(text []byte) (digits, suffix string, ok bool) {
	if len(text) > MaxText {
		return "", "", false
	}
	m := number.FindSubmatch(text)
	if m == nil {
		return "", "", false
	}
	return string(m[1]), string(m[2]), true
}

// invalid is the error for text that is none of the type's.
func invalid(what string, text []byte, want string) error {
	if len(text) > MaxText {
		return fmt.Errorf("%s of %d bytes: want %s", what, len(text), want)
	}
	return fmt.Errorf("invalid %s %q: want %s", what, text, want)
}

// integer returns digits × factor, or false where that is no integer from 0 to
// maxInteger.
func integer(digits string, factor int64) (int64, bool) {
	r, ok := new(big.Rat).SetString(digits) // bounded by MaxText and number
	if !ok {
		return 0, false
	}
	r.Mul(r, new(big.Rat).SetInt64(factor))
	if !r.IsInt() || !r.Num().IsInt64() || r.Num().Int64() > maxInteger {
		return 0, false
	}
	return r.Num().Int64(), true
}

// scaled returns digits × 10^exponent, correctly rounded.
func scaled(digits string, exponent int) (float64, error) {
	if mantissa, e, ok := strings.Cut(strings.ToLower(digits), "e"); ok {
		n, err := strconv.Atoi(e)
		if err != nil {
			return 0, err
		}
		digits, exponent = mantissa, exponent+n
	}
	return strconv.ParseFloat(digits+"e"+strconv.Itoa(exponent), 64)
}

// shifted returns f × 10^-places as exact decimal text: it moves the point in the
// shortest text that is read as f, since a product would be rounded.
func shifted(f float64, places int) string {
	whole, fraction, _ := strings.Cut(strconv.FormatFloat(f, 'f', -1, 64), ".")
	if places < 0 {
		fraction += strings.Repeat("0", max(0, -places-len(fraction)))
		whole, fraction = whole+fraction[:-places], fraction[-places:]
	} else {
		whole = strings.Repeat("0", max(0, places+1-len(whole))) + whole
		whole, fraction = whole[:len(whole)-places], whole[len(whole)-places:]+fraction
	}
	whole, fraction = strings.TrimLeft(whole, "0"), strings.TrimRight(fraction, "0")
	if whole == "" {
		whole = "0"
	}
	if fraction != "" {
		whole += "." + fraction
	}
	return whole
}

// prefix is an SI prefix.
type prefix struct {
	name     string
	exponent int
}

var prefixes = []prefix{{"k", 3}, {"M", 6}, {"G", 9}, {"T", 12}}

// exponentOf returns the exponent of an SI prefix; K is read as k.
func exponentOf(name string) (int, bool) {
	switch name {
	case "":
		return 0, true
	case "K":
		return 3, true
	}
	for _, p := range prefixes {
		if p.name == name {
			return p.exponent, true
		}
	}
	return 0, false
}
