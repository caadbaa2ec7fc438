// Package cases has frames by name, and what becomes of each. They are for both twins: the
// tests of filter/packet and filter/verdict give them to those in Go, tests/contract gives
// them to the programs in the kernel.
package cases
