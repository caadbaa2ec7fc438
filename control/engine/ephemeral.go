package engine

import (
	"sync"

	"weir/loader/netif"
)

// EphemeralPort returns the lowest port that this host connects from. Others are assumed
// to do the same.
var EphemeralPort = sync.OnceValue(func() uint16 {
	const usual = 32768
	first, err := netif.Target{}.EphemeralPort()
	if err != nil {
		return usual
	}
	return first
})
