// Package trial sizes and evaluates Monte Carlo tests that compare measured
// with predicted rates.
//
// A test that fails by chance now and then is soon ignored, and one that
// accepts anything tests nothing. The number of trials therefore follows from
// the deviation to detect, and the verdict from the binomial distribution of
// the hits.
package trial

import (
	"math"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"
)

// significance is the probability with which chance alone fails a test.
const significance = 1e-6

// Count returns the number of independent trials after which the measured rate
// is within the relative tolerance of the true one, except with probability
// significance, by the normal approximation of the binomial distribution.
func Count(rate, tolerance float64) int {
	z := distuv.UnitNormal.Quantile(1 - significance/2)
	return int(math.Ceil(z * z / (tolerance * tolerance) * (1 - rate) / rate))
}

// Check fails the test if the number of hits would occur by chance with
// probability less than significance, given independent trials of the given
// rate.
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
