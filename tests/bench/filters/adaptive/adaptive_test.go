package adaptive

import (
	"testing"

	"weir/filter/hash"
	"weir/tests/seed"
)

// A key of the set is always found, whatever was mended; and a false positive that was mended
// alone is none any more.
func TestMend(t *testing.T) {
	r := seed.New(t)
	from := r.Uint64()
	keys := make([]uint64, 50_000)
	for i := range keys {
		keys[i] = hash.Nth(from, uint64(i))
	}
	for _, k := range Kinds {
		const bits = 12 * 50_000
		f := k.New(keys, bits, r.Uint64())
		if f.Bits() > bits {
			t.Errorf("%s: %d bits", k.Name, f.Bits())
		}
		mended, still := 0, 0
		for i := range uint64(30_000) { // so few mistakes that the tables have room
			if key := hash.Nth(from+1, i); f.Contains(key) {
				mended++
				if f.Mend(key); f.Contains(key) {
					still++
				}
			}
		}
		for _, key := range keys {
			if !f.Contains(key) {
				t.Fatalf("%s: a key is missing", k.Name)
			}
		}
		t.Logf("%s: %d of %d are still false positives", k.Name, still, mended)
		if adapts := k.Name != "cascade alone"; adapts && 10*still > mended || !adapts && still != mended {
			t.Errorf("%s: %d of %d are still false positives", k.Name, still, mended)
		}
	}
}
