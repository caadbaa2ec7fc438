package invariant_test

import (
	"bytes"
	"fmt"

	"weir/filter/invariant"
)

// Recognise a packet one hop further.
func Example() {
	packet := append([]byte{
		0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0, // 28 bytes, TTL 64, UDP
		192, 0, 2, 1, 198, 51, 100, 7,
	}, "\x10\x00\x00\x35\x00\x08\x00\x00"...)
	before, err := invariant.Append(nil, packet)
	if err != nil {
		fmt.Println(err)
	}
	packet[8]--
	after, err := invariant.Append(nil, packet)
	fmt.Println(bytes.Equal(before, after), err)
	// Output: true <nil>
}
