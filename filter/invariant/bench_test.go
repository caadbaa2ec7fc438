package invariant_test

import (
	"testing"

	"weir/filter/invariant"
)

func BenchmarkAppend(b *testing.B) {
	packet := make([]byte, 60)
	copy(packet, []byte{0x45, 0, 0, 60, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 7, 0x10, 0, 0, 0x35, 0, 40})
	buf := make([]byte, 0, 128)
	for b.Loop() {
		if _, err := invariant.Append(buf, packet); err != nil {
			b.Fatal(err)
		}
	}
}
