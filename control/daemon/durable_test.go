package daemon

import (
	"log/slog"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/ruleset"
	"weir/tests/crash"
)

// TestDurableFiles lets the machine crash, and steps fail, while manual monitor mode is
// switched on and off, and while a configuration is to be confirmed.
func TestDurableFiles(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	t.Run("monitor", func(t *testing.T) {
		crash.Test{
			Begin: "off",
			Work: func(t *testing.T, d *crash.Disk) {
				c := config.Default()
				c.StateDir = config.Path(d.Dir)
				mode := &override{active: &active{prepared: &ruleset.Ruleset{Config: c}}}
				on := &api.MonitorOverride{Since: time.Unix(1, 0)}
				for range 2 {
					_ = d.Do(func() error { return mode.save(on) }, "on")
					for range 2 { // the second time it may be gone, but not for good
						_ = d.Do(func() error { return mode.save(nil) }, "off")
					}
				}
			},
			Read: func(_ *testing.T, dir string, _ int) (string, error) {
				c := config.Default()
				c.StateDir = config.Path(dir)
				if loadMonitor(statePath(c, monitorFile), nil, time.Unix(2, 0), log) != nil {
					return "on", nil
				}
				return "off", nil
			},
		}.Run(t)
	})
}
