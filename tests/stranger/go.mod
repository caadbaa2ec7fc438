module example.org/stranger

go 1.26.0

require weir v0.0.0

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/klauspost/compress v1.20.3 // indirect
	gonum.org/v1/gonum v0.17.0 // indirect
)

replace weir => ../..
