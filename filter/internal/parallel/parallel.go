// Package parallel divides work among the CPUs.
package parallel

import (
	"runtime"
	"sync"
)

// Ranges splits 0…n−1 into one range for each core.
func Ranges(n int, do func(from, to int)) {
	workers := runtime.GOMAXPROCS(0)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() { do(n*w/workers, n*(w+1)/workers) })
	}
	wg.Wait()
}
