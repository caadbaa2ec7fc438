package flood

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

func TestEncoding(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 58))
	d := quiet(r)
	d.waiting = nil // is not encoded
	b, err := d.AppendBinary([]byte("before"))
	if err != nil {
		t.Fatal(err)
	}
	b = b[len("before"):]
	var again Detector
	if err := again.UnmarshalBinary(b); err != nil {
		t.Fatal(err)
	}
	if twice, _ := again.AppendBinary(nil); !bytes.Equal(twice, b) {
		t.Error("the encoding has changed")
	}
	flooded := many(3000, func() Record {
		p := packetTo(r, protoUDP, 123, 443)
		p.Length = 468
		return p
	})
	want, got := d.Second(flooded, 3000), again.Second(flooded, 3000)
	if want == nil || got == nil || len(want.Rules) != len(got.Rules) || want.Rules[0].String() != got.Rules[0].String() || want.Usual != got.Usual {
		t.Errorf("%+v, want %+v", got, want)
	}
	for range 200 {
		bad := bytes.Clone(b)
		if i := r.IntN(len(bad)); r.IntN(2) == 0 {
			bad = bad[:i]
		} else {
			bad[i] ^= 1 << r.IntN(8)
		}
		d := Detector{age: 7}
		if err := d.UnmarshalBinary(bad); err == nil || d.age != 7 || d.Quiet() != 0 {
			t.Fatalf("a damaged encoding: %v, %+v", err, d)
		}
	}
}
