// Package trial sizes and judges the Monte-Carlo tests of measured against
// predicted rates.
//
// A test that fails now and then by chance is soon ignored, and one that
// accepts anything tests nothing. Hence the number of trials follows from the
// deviation that must be found, and the judgement from the binomial
// distribution of the hits.
package trial

import (
	"math"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"
)

// significance is the probability with which chance alone fails a test.
const significance = 1e-6

// Count is the number of independent trials of a rate after which chance
// leaves the measured rate within the relative tolerance of the true one, by
// the normal approximation of the binomial distribution.
func Count(rate, tolerance float64) int {
	z := distuv.UnitNormal.Quantile(1 - significance/2)
	return int(math.Ceil(z * z / (tolerance * tolerance) * (1 - rate) / rate))
}

// Check fails the test if so few or so many hits among the trials occur by
// chance with less than the significance when each hits with the given rate.
func Check(t testing.TB, hits, trials int, rate float64) {
	t.Helper()
	b := distuv.Binomial{N: float64(trials), P: rate}
	measured := float64(hits) / float64(trials)
	t.Logf("measured %.6g, predicted %.6g: ratio %.4f, %d of %d", measured, rate, measured/rate, hits, trials)
	if low, high := b.CDF(float64(hits)), b.Survival(float64(hits)-1); min(low, high) < significance/2 {
		t.Errorf("measured rate %.6g is not %.6g: %d hits in %d trials have probability %.2g",
			measured, rate, hits, trials, 2*min(low, high))
	}
}
