module weir/tests/bench/filters

go 1.26.0

require (
	github.com/bits-and-blooms/bloom/v3 v3.7.1
	weir v0.0.0
)

require (
	github.com/bits-and-blooms/bitset v1.24.2 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	gonum.org/v1/gonum v0.17.0 // indirect
)

replace weir => ../../..
