// Package observe says what programs and lists do with packets: who was dropped in the last hour, with whom the
// host converses, what lists are worth, and the answers to questions about a packet. It collects the flows that
// are exported, and the history of the traffic.
package observe

import (
	"weir/control/ruleset"
	"weir/loader"
)

// Host is the daemon. It is safe for concurrent use, but for what says otherwise.
type Host interface {
	ruleset.Host

	// Stats returns the memory of the programs of all interfaces. It is for turns of the daemon's loop.
	Stats() []*loader.Stats

	// Note publishes the lists anew. It is for turns of the daemon's loop.
	Note()
}
