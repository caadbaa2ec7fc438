package lab

import (
	"flag"
	"fmt"
	"runtime"
)

// Parallel makes tests that call t.Parallel run twice as many at once as there are CPUs,
// unless the command line says how many: they mostly wait. TestMain calls it.
func Parallel() {
	if err := flag.Set("test.parallel", fmt.Sprint(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err) // the flag is package testing's
	}
	flag.Parse()
}
