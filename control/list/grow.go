package list

import "slices"

// The runtime cannot stop a goroutine while it copies memory. A collection that begins
// during a copy of a hundred megabytes waits for its end, and everything else with it: a
// quarter of a second beside ten million entries. What may be large is copied in pieces.
const piece = 4096

// Append appends more to s, as append does, but in pieces: s may be large.
func Append[T any](s, more []T) []T {
	if need := len(s) + len(more); need > cap(s) {
		s = Grown(s, max(need, len(s)+len(s)/4))
	}
	for p := range slices.Chunk(more, piece) {
		s = appendPiece(s, p)
	}
	return s
}

// appendPiece appends more to s. The runtime can stop a goroutine at the call.
//
//go:noinline
func appendPiece[T any](s, more []T) []T { return append(s, more...) }

// push appends v to s, as append does.
func push[T any](s []T, v T) []T {
	if len(s) == cap(s) && len(s) >= piece {
		s = Grown(s, len(s)+len(s)/4)
	}
	return append(s, v)
}

// Grown returns a copy of s with a capacity. It copies in pieces, as Append does.
func Grown[T any](s []T, capacity int) []T {
	return Append(make([]T, 0, capacity), s)
}
