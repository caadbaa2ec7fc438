package digest

import (
	"errors"
	"testing"

	"weir/filter/hash"
	"weir/filter/invariant"
)

// A packet has one digest on its way, another under another secret, and none if it is truncated.
func TestSum(t *testing.T) {
	packet := append([]byte{
		0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0, // 28 bytes, TTL 64, UDP
		192, 0, 2, 1, 198, 51, 100, 7,
	}, "\x10\x00\x00\x35\x00\x08\x00\x00"...)
	secret := hash.NewSecret(hash.Seed{1})
	first, err := Sum(secret, packet)
	if err != nil {
		t.Fatal(err)
	}
	packet[8]--
	if d, err := Sum(secret, packet); err != nil || d != first {
		t.Errorf("one hop further: %#x, %v; want %#x", d, err, first)
	}
	if d, err := Sum(hash.NewSecret(hash.Seed{2}), packet); err != nil || d == first {
		t.Errorf("the secret does not change the digest: %v", err)
	}
	if _, err := Sum(secret, packet[:27]); !errors.Is(err, invariant.ErrTruncated) {
		t.Errorf("of 27 bytes: error %v", err)
	}
	packet[12]++
	if d, err := Sum(secret, packet); err != nil || d == first {
		t.Errorf("the source does not change the digest: %v", err)
	}
}

func BenchmarkSum(b *testing.B) {
	v4 := make([]byte, 60)
	v4[0], v4[3], v4[9] = 0x45, byte(len(v4)), 17
	v6 := make([]byte, 80)
	v6[0], v6[5], v6[6] = 0x60, byte(len(v6)-40), 17
	secret := hash.NewSecret(hash.Seed{1})
	for _, c := range []struct {
		family string
		packet []byte
	}{{"v4", v4}, {"v6", v6}} {
		b.Run("family="+c.family, func(b *testing.B) {
			for b.Loop() {
				if _, err := Sum(secret, c.packet); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
