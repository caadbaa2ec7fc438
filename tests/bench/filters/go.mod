module weir/tests/bench/filters

go 1.26.0

require (
	github.com/FastFilter/xorfilter v0.4.2-0.20260120015552-4e5a4d9df65a
	github.com/bits-and-blooms/bloom/v3 v3.7.1
	golang.org/x/sys v0.49.0
	weir v0.0.0
)

require (
	github.com/bits-and-blooms/bitset v1.24.6 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/klauspost/compress v1.20.3 // indirect
	gonum.org/v1/gonum v0.17.0 // indirect
)

replace weir => ../../..
