package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"weir/control/attach"
)

// pinned makes pins again. It is safe for concurrent use.
type pinned struct {
	loop     *loop
	active   *active
	readings *readings // with the interfaces
	log      *slog.Logger

	mu      sync.Mutex // held while pins are looked for
	problem problem    // of those of shared maps; guarded by mu
}

// follow makes pins again that are lost while the daemon runs, until ctx is done.
func (p *pinned) follow(ctx context.Context) {
	every(ctx, stateInterval, func(time.Time) { p.check(ctx) })
}

// check looks for the pins of all interfaces and of shared maps, and makes those again
// that are gone, as where the BPF file system was unmounted. Those of interfaces are not looked
// for in Run's goroutine: it may be busy for longer than a lost pin may go unnoticed.
func (p *pinned) check(ctx context.Context) {
	p.repin()
	err := p.loop.Do(ctx, func() error {
		made, err := p.active.prepared.Config.Pins.RepinShared(p.active.engine.Kernel())
		if made > 0 {
			p.log.Error("pins of maps that all programs share were lost while weir ran: they are made again", "pins", made)
		}
		return err
	})
	text := ""
	if err != nil && !errors.Is(err, errStopped) && ctx.Err() == nil {
		text = "a restart would forget what all programs share: " + err.Error()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problem.log(text, p.log.Error)
}

// repin makes the pins of the interfaces again that are gone. It is safe for concurrent use.
func (p *pinned) repin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	noted := p.readings.status.Load()
	if noted == nil {
		return
	}
	for _, i := range noted.interfaces {
		a := i.Attachment()
		if a == nil {
			continue
		}
		log := p.log.With("interface", i.Target.String())
		was := a.Unpinned()
		made, err := a.Repin()
		switch now := a.Unpinned(); {
		case err != nil && now != was:
			log.Error("the interface is " + attach.Unpinned.Says() + ": " + now)
		case err != nil:
		case was != "":
			log.Info("pinned again: filtering goes on when weir ends", "pins", made)
		case made > 0:
			log.Error("pins were lost while weir ran: they are made again", "pins", made)
		}
	}
}

// last makes the pins again before the daemon ends, and logs where it ends filtering.
func (p *pinned) last() {
	p.repin()
	noted := p.readings.status.Load()
	if noted == nil {
		return
	}
	for _, i := range noted.interfaces {
		if i, _ := i.Now(); i.Condition == attach.Unpinned {
			p.log.Error("filtering ends now, since the program is not pinned: "+i.Problem, "interface", i.Target.String())
		}
	}
}
