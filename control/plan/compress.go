package plan

import (
	"fmt"
	"math"

	"weir/filter/compress"
	"weir/filter/fpr"
)

// Compressed is a planned filter that is compressed to be sent.
type Compressed struct {
	M        int     `json:"m"`         // bits in memory
	K        int     `json:"k"`         // hash functions
	SentBits float64 `json:"sent_bits"` // expected, header not counted
	Rate     float64 `json:"rate"`      // exact false-positive rate
	Plain    float64 `json:"plain"`     // the same of a filter of the sent size, not compressed
}

// CompressFor plans the filter for n elements with the least rate that is sent
// in at most sent bits an element and takes at most memory bits an element
// before compression. It fails with an InvalidError where these are not positive
// or exceed 2^32 bits in all, and where none fits.
func CompressFor(n int, sent, memory float64) (Compressed, error) {
	if most := memory * float64(n); n < 1 || !(sent > 0 && memory > 0 && most >= 1 && most <= math.MaxUint32) {
		return Compressed{}, Invalid("plan compress: no filter has n=%d, %v bits an element sent, %v in memory", n, sent, memory)
	}
	p, err := compress.Optimal(uint64(n), sent*float64(n), uint32(memory*float64(n)))
	if err != nil {
		return Compressed{}, fmt.Errorf("plan compress: %w", err)
	}
	if p.Sent == 0 {
		return Compressed{}, fmt.Errorf("plan compress: no filter for %d elements fits %v bits an element", n, sent)
	}
	m, k := int(p.Geometry.M()), p.Geometry.K()
	c := Compressed{M: m, K: k, SentBits: p.Sent, Rate: fpr.Exact(m, n, k)}
	_, c.Plain = fpr.BestK(max(1, int(sent*float64(n))), n)
	return c, nil
}
