//go:build !race

package long

const raced = false
