package audit

import (
	"context"

	"weir/control/api"
)

// Sessions records the sessions of a console.
type Sessions interface {
	Open(api.ConsoleRequest) api.ConsoleOpened
	End() int
}

// OpenConsole opens a session, and records one that may change something.
func (a *Log) OpenConsole(s Sessions, asked api.ConsoleRequest) api.ConsoleOpened {
	if !asked.ReadOnly {
		r := Record{Change: Console}
		By(&r, asked.UID, asked.Client)
		ByProcess(&r, asked.Process)
		a.Record(r)
	}
	return s.Open(asked)
}

// EndConsole ends all sessions, and records that.
func (a *Log) EndConsole(ctx context.Context, s Sessions) api.ConsoleEnded {
	r := Record{Change: ConsoleEnd}
	ByCaller(ctx, &r)
	a.Record(r)
	return api.ConsoleEnded{Sessions: s.End()}
}
