//go:build race

package broker

// A reload of nats-server's options replaces a pointer that its streams read without a lock. Both
// are one word, and the race detector stops at it.
const traceAtStart = true
