package capture

import (
	"fmt"

	"weir/control/api"
)

// Of returns what a capture has of an event.
func Of(e *api.Event) (Packet, Note) {
	n := Note{Interface: e.Interface, Out: e.Direction == "out", Dropped: e.Drops(), Comment: e.Reason}
	if e.Netns != "" {
		n.Interface += " in namespace " + e.Netns
	}
	if e.List != "" {
		n.Comment += ", list " + e.List
	}
	if e.OneIn > 1 {
		n.Comment += fmt.Sprintf(", 1 of %d", e.OneIn)
	}
	return Packet{Time: e.Time, Data: e.Frame, Length: e.Length}, n
}
