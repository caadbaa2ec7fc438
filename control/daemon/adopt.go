package daemon

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"weir/control/config"
	"weir/control/engine"
	"weir/filter/membership"
)

// owner identifies the state directory, whose journal only one process has open: only
// that may change a filter in the kernel. It is "" where others may.
func (d *Daemon) owner(c *config.Config) string {
	if c.StateDir == "" || !d.journal.Exclusive() {
		return ""
	}
	info, err := os.Stat(string(c.StateDir))
	if err != nil {
		return ""
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%d:%d", s.Dev, s.Ino)
}

// adopt returns the first engine, over the filter that the last process has left in the
// kernel, or nil where it is to be built.
func (d *Daemon) adopt(p *Prepared, c engine.Config) *engine.Generation {
	if d.active.engine != nil || c.Owner == "" || c.Mode != membership.Approximate {
		return nil
	}
	began := time.Now()
	f, err := d.active.attach.Filter(targetsOf(p.config))
	if f == nil {
		if err != nil {
			d.o.Log.Info("the filter in the kernel cannot be adopted, it is built anew: " + err.Error())
		}
		return nil
	}
	e, changed, err := engine.Adopt(p.rules, c, f)
	if err != nil {
		d.o.Log.Info("the filter in the kernel is built anew: " + err.Error())
		return nil
	}
	d.o.Log.Info("adopted the filter in the kernel", "entries", p.blocked(), "changed_bits", changed,
		"took", time.Since(began).Round(time.Millisecond).String())
	return e
}
