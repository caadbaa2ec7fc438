package quotient_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"weir/filter/quotient"
)

func address(s string) uint64 {
	a := netip.MustParseAddr(s).As4()
	return uint64(binary.BigEndian.Uint32(a[:]))
}

func Example() {
	entries := []quotient.Entry{
		{Key: address("192.0.2.1"), List: 1},
		{Key: address("198.51.100.7"), List: 2},
	}
	// Room for a thousand entries more, of at most three lists.
	set, err := quotient.Build(quotient.Plan(32, len(entries)+1000, 3), entries)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := set.Add(address("203.0.113.9"), 3); err != nil {
		fmt.Println(err) // ErrFull: build a larger set
		return
	}
	set.Remove(address("192.0.2.1"))

	for _, a := range []string{"192.0.2.1", "198.51.100.7", "203.0.113.9"} {
		list, ok := set.Lookup(address(a))
		fmt.Println(a, list, ok)
	}
	// Output:
	// 192.0.2.1 0 false
	// 198.51.100.7 2 true
	// 203.0.113.9 3 true
}
