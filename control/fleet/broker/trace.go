//go:build !race

package broker

// traceAtStart makes the server trace from its start on, instead of from the first question of a
// node of a former version on.
const traceAtStart = false
