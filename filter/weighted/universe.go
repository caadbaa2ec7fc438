// Package weighted implements the weighted Bloom filter of Bruck, Gao and
// Jiang: the number of hash functions k_e differs from element to element, more
// for those that are queried often and are unlikely members, to minimise the
// false-positive rate of the queries rather than that of the elements.
//
// Its sources are the two versions of "Weighted Bloom Filter": the conference
// paper of 2006, and the technical report with the derivation. Sections and
// equations bear the same numbers in both; equations 11 to 47 and figure 2 are
// in the report alone.
//
// # Departures from the papers
//
// Theorem 3.1 is optimal only if all likelihoods x_e are equal. Its proof keeps
// Σ k_e over the whole universe constant (equations 16 to 21), but the filter's
// load is Σ x_e·k_e. Under that constraint ln r_e becomes ln(r_e/x_e); see
// [Universe.Optimal]. [Universe.Theorem] is the published version.
//
// A k_e of 0 makes every query for the element positive. A filter that drops
// packets must not use it; see [Dropping].
package weighted

import (
	"fmt"
	"math"
)

// Class is a popularity class: elements of the universe that share their query
// frequency and their likelihood of being a member (section III-C).
type Class struct {
	Count      float64 // elements, above 0; an expectation if not an integer
	Frequency  float64 // f_e of each element, above 0, in any unit
	Likelihood float64 // x_e of each element, from 0 to less than 1
}

// Universe contains all elements that may be queried, by class.
type Universe []Class

// Validate returns an error that names the class and field if a class is out
// of its ranges or if the universe expects no members. The other methods need
// a valid universe.
func (u Universe) Validate() error {
	for i, c := range u {
		switch {
		case !(c.Count > 0) || math.IsInf(c.Count, 1):
			return fmt.Errorf("weighted: class %d: count %v is not above 0", i, c.Count)
		case !(c.Frequency > 0) || math.IsInf(c.Frequency, 1):
			return fmt.Errorf("weighted: class %d: frequency %v is not above 0", i, c.Frequency)
		case !(c.Likelihood >= 0 && c.Likelihood < 1):
			return fmt.Errorf("weighted: class %d: likelihood %v is not in [0, 1)", i, c.Likelihood)
		}
	}
	if u.Members() == 0 {
		return fmt.Errorf("weighted: no members expected in %d classes", len(u))
	}
	return nil
}

// Size returns the number N of elements.
func (u Universe) Size() float64 {
	var sum float64
	for _, c := range u {
		sum += c.Count
	}
	return sum
}

// Members returns the expected number n of members, Σ x_e.
func (u Universe) Members() float64 {
	var sum float64
	for _, c := range u {
		sum += c.Count * c.Likelihood
	}
	return sum
}

// Queries returns, for each class, E{r_e} of one of its elements: the expected
// share of the queries for non-members that are for this element, approximated
// by the ratio of the expectations (equation 10). Summed over the elements the
// shares are slightly less than 1 if a single element receives many of the
// queries.
func (u Universe) Queries() []float64 {
	var unlisted float64 // expected frequency of all non-members
	for _, c := range u {
		unlisted += c.Count * (1 - c.Likelihood) * c.Frequency
	}
	r := make([]float64, len(u))
	for i, c := range u {
		r[i] = (1 - c.Likelihood) * c.Frequency / (c.Likelihood*c.Frequency + unlisted)
	}
	return r
}

// Step returns the step distribution: size elements, of which the fraction hot,
// in (0, 1), is queried ratio times as often as each of the others. All are
// members with the same likelihood, members in expectation (section III-C,
// where hot is α and ratio is c). The hot class comes first.
func Step(size, members, hot, ratio float64) Universe {
	x := members / size
	return Universe{
		{Count: hot * size, Frequency: ratio, Likelihood: x},
		{Count: (1 - hot) * size, Frequency: 1, Likelihood: x},
	}
}

// Zipf returns the Zipf distribution over size elements: the one of rank i,
// counting from 1, is queried i^−exponent times as often as the first. All are
// members with the same likelihood, members in expectation (section III-C,
// where the exponent is α). The classes are the first hot elements, one each,
// in order of rank, and one class, with their mean frequency, of all others.
func Zipf(size, hot int, members, exponent float64) Universe {
	x := members / float64(size)
	u := make(Universe, 0, min(size, hot+1))
	for i := 1; i <= min(size, hot); i++ {
		u = append(u, Class{Count: 1, Frequency: math.Pow(float64(i), -exponent), Likelihood: x})
	}
	if cold := size - hot; cold > 0 {
		sum := zipfSum(size, exponent) - zipfSum(hot, exponent)
		u = append(u, Class{Count: float64(cold), Frequency: sum / float64(cold), Likelihood: x})
	}
	return u
}

// zipfSum returns Σ i^−s for i from 1 to n: term by term at first, then by the
// Euler–Maclaurin formula, whose next term is below 1e-15 from there on.
func zipfSum(n int, s float64) float64 {
	const exact = 1000
	var sum float64
	for i := 1; i <= min(n, exact); i++ {
		sum += math.Pow(float64(i), -s)
	}
	if n <= exact {
		return sum
	}
	a, b := float64(exact), float64(n)
	integral := math.Log(b / a)
	if s != 1 {
		integral = (math.Pow(b, 1-s) - math.Pow(a, 1-s)) / (1 - s)
	}
	return sum + integral + (math.Pow(b, -s)-math.Pow(a, -s))/2 +
		s*(math.Pow(a, -s-1)-math.Pow(b, -s-1))/12
}

// Correlated returns the universe with the likelihoods x_e = a·f_e^b, where a
// preserves the expected number of members (report, section III-C.2): frequent
// elements are likelier members for positive b and less likely ones for
// negative b. It fails, naming the class, if a likelihood reaches 1.
func (u Universe) Correlated(b float64) (Universe, error) {
	var sum float64
	for _, c := range u {
		sum += c.Count * math.Pow(c.Frequency, b)
	}
	a := u.Members() / sum
	v := make(Universe, len(u))
	for i, c := range u {
		c.Likelihood = a * math.Pow(c.Frequency, b)
		v[i] = c
	}
	if err := v.Validate(); err != nil {
		return nil, fmt.Errorf("weighted: correlated with b=%v: %w", b, err)
	}
	return v, nil
}
