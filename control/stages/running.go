package stages

import (
	"log/slog"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/observe/events"
	"weir/control/stage"
	"weir/control/stage/digest"
	"weir/control/stage/loop"
	"weir/control/stage/multicast"
	"weir/control/stage/tracker"
	"weir/loader"
	"weir/loader/netif"
)

// Running makes stages do their work while programs run, for the life of a daemon. Its methods
// are not safe for concurrent use, except Trace.
type Running struct {
	*digest.Recorder
	*multicast.Groups
	Trackers *tracker.Runner

	loops *loop.Log
	parts []stage.Ticker // of the programs
}

// NewRunning returns what follows no programs yet. What it saves is below a directory.
func NewRunning(stateDir string, hub *events.Hub, log *slog.Logger) *Running {
	return &Running{Recorder: digest.NewRecorder(stateDir, hub, log), Groups: multicast.NewGroups(log), Trackers: tracker.NewRunner(log), loops: loop.NewLog(hub, log)}
}

// Prepare makes ready to follow the programs of a configuration.
func (r *Running) Prepare(next *Table) { r.Recorder.Prepare(next.digest) }

// Finish ends what does not go on with the next programs. It is called when these are ready, and
// the last ones still run.
func (r *Running) Finish(next *Table) { r.Recorder.Finish(next.digest) }

// Follow goes on with the programs of a configuration.
func (r *Running) Follow(next *Table) {
	r.Recorder.Follow(next.digest)
	r.Trackers.Follow(&next.Trackers)
	r.loops.Follow(next.loop != nil)
	r.parts = nil
	for _, p := range next.parts {
		if of, is := p.(stage.Ticker); is {
			r.parts = append(r.parts, of)
		}
	}
}

// Routes returns the routes that stages have of their own. A host answers by them.
func (r *Running) Routes(h multicast.Host) []api.Route { return r.Groups.Routes(h) }

// Samples returns what stages say of the host and of interfaces, whose programs are of a generation.
func (r *Running) Samples(g *engine.Generation) []stage.Sample {
	return slices.Concat(r.Recorder.Samples(), r.Groups.Samples(g), r.Trackers.Samples())
}

// Tick does what is due for the programs of a generation that are attached, by the kernel's clock. It returns
// how soon it is to be called again. What was counted on interfaces that are named is kept while
// they are gone.
func (r *Running) Tick(now time.Duration, g *engine.Generation, attached []*loader.Attachment, named []netif.Target) time.Duration {
	var incoming []stage.Interface
	for _, a := range attached {
		if !a.Target().Out {
			incoming = append(incoming, stage.Interface{Target: a.Target(), Stats: a.Stats()})
		}
	}
	next := min(r.Recorder.Tick(now, incoming, named), r.loops.Tick(time.Now()))
	for _, p := range r.parts {
		next = min(next, p.Tick(now, g.Kernel(), incoming))
	}
	return next
}
