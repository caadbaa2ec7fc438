package curve

import (
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
)

// mostTicks fit on an axis without labels touching.
const mostTicks = 9

// steps puts a tick at each multiple of 1, 2 or 5 times a power of ten.
func steps(low, high float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/mostTicks)))
	for _, factor := range []float64{2, 2.5, 2} { // 1, 2, 5, 10
		if (high-low)/step <= mostTicks {
			break
		}
		step *= factor
	}
	var ticks []plot.Tick
	for i := math.Ceil(low / step); i*step <= high*(1+1e-9); i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: label(i * step)})
	}
	return ticks
}

// decades puts a tick at each power of ten, or at every n-th if they do not fit,
// and also in between over at most two decades.
func decades(low, high float64) []plot.Tick {
	span := math.Log10(high / low)
	every := max(1, math.Ceil(span/mostTicks))
	factors := []float64{1}
	switch {
	case span <= 1:
		factors = []float64{1, 2, 3, 4, 5, 6, 7, 8, 9}
	case span <= 2:
		factors = []float64{1, 2, 5}
	}
	var ticks []plot.Tick
	for d := math.Floor(math.Log10(low)/every) * every; d <= math.Log10(high); d += every {
		for _, factor := range factors {
			if v := factor * math.Pow(10, d); v >= low*(1-1e-9) && v <= high*(1+1e-9) {
				ticks = append(ticks, plot.Tick{Value: v, Label: label(v)})
			}
		}
	}
	return ticks
}

// enclose widens a logarithmic axis to 1, 2 or 5 times a power of ten, so that
// its ends bear ticks.
func enclose(a *plot.Axis) {
	power := math.Pow(10, math.Floor(math.Log10(a.Min)))
	for _, factor := range []float64{5, 2, 1} {
		if factor*power <= a.Min*(1+1e-9) {
			a.Min = factor * power
			break
		}
	}
	power = math.Pow(10, math.Floor(math.Log10(a.Max)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if factor*power >= a.Max*(1-1e-9) {
			a.Max = factor * power
			break
		}
	}
}

// exponent shortens the exponents that strconv writes.
var exponent = strings.NewReplacer("e-0", "e-", "e+0", "e", "e+", "e")

func label(v float64) string {
	if v == 0 {
		return "0" // not -0
	}
	const digits = 6 // hides what rounding adds
	return exponent.Replace(strconv.FormatFloat(v, 'g', digits, 64))
}
