package daemon

import (
	"context"
	"errors"

	"weir/control/attach"
)

// followPins makes pins again that are lost while the daemon runs, until ctx is done.
func (d *Daemon) followPins(ctx context.Context) {
	every(ctx, stateInterval, func() { d.checkPins(ctx) })
}

// checkPins looks for the pins of all interfaces and of shared maps, and makes those again
// that are gone, as where the BPF file system was unmounted. Those of interfaces are not looked
// for in Run's goroutine: it may be busy for longer than a lost pin may go unnoticed.
func (d *Daemon) checkPins(ctx context.Context) {
	d.repin()
	err := d.loop.Do(ctx, func() error {
		made, err := d.active.prepared.config.Pins.RepinShared(d.active.engine.Kernel())
		if made > 0 {
			d.o.Log.Error("pins of maps that all programs share were lost while weir ran: they are made again", "pins", made)
		}
		return err
	})
	text := ""
	if err != nil && !errors.Is(err, errStopped) && ctx.Err() == nil {
		text = err.Error()
	}
	d.pinning.Lock()
	defer d.pinning.Unlock()
	if text != "" && text != d.sharedError {
		d.o.Log.Error("a restart would forget what all programs share: " + text)
	}
	d.sharedError = text
}

// repin makes the pins of the interfaces again that are gone. It is safe for concurrent use.
func (d *Daemon) repin() {
	d.pinning.Lock()
	defer d.pinning.Unlock()
	noted := d.status.Load()
	if noted == nil {
		return
	}
	for _, i := range noted.interfaces {
		a := i.Attachment()
		if a == nil {
			continue
		}
		log := d.o.Log.With("interface", i.Target.String())
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

// lastPins makes the pins again before the daemon ends, and logs where it ends filtering.
func (d *Daemon) lastPins() {
	d.repin()
	noted := d.status.Load()
	if noted == nil {
		return
	}
	for _, i := range noted.interfaces {
		if i, _ := i.Now(); i.Condition == attach.Unpinned {
			d.o.Log.Error("filtering ends now, since the program is not pinned: "+i.Problem, "interface", i.Target.String())
		}
	}
}
