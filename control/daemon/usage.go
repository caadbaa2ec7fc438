package daemon

import (
	"errors"
	"time"

	"weir/control/config"
	"weir/control/feed"
	"weir/filter/membership"
	"weir/loader"
)

// usage is what has been reported of a list of CrowdSec's decisions.
type usage struct {
	at        time.Time
	processed uint64
	matched   loader.Counter
	asked     bool // a report is under way
	refused   bool // by an API that takes none
}

// reportUsage reports the usage of CrowdSec's decisions, where that is due. What a
// report that failed had is in the next one.
func (d *Daemon) reportUsage(now time.Time) {
	for _, l := range d.active.prepared.lists {
		if l.feed == nil || l.Format.Kind != feed.CrowdSec {
			continue
		}
		counters := d.readings.Counters()
		is := usage{at: now, processed: counters.Packets(), matched: d.observers.meter.Hits()[d.active.prepared.rules[l.source-1].Name]}
		last := d.usage[l.feed]
		if last == nil {
			d.usage[l.feed] = &is
			continue
		}
		if last.asked || last.refused || now.Sub(last.at) < feed.UsageInterval {
			continue
		}
		u := feed.Usage{Began: last.at, Ended: now, Started: d.active.began, Processed: is.processed - last.processed}
		if l.Action == config.Block && !d.active.engine.Monitor && d.active.prepared.config.Mode == membership.Exact {
			u.Dropped, u.DroppedBytes = is.matched.Packets-last.matched.Packets, is.matched.Bytes-last.matched.Bytes
		}
		last.asked = true
		go func() {
			err := l.feed.ReportUsage(d.loop.ctx, u)
			_ = d.loop.Do(d.loop.ctx, func() error {
				switch last.asked = false; {
				case errors.Is(err, feed.ErrNoUsage):
					last.refused = true
					d.o.Log.Debug(err.Error(), "list", l.Name)
				case err != nil:
					last.at = now // not to try each second; the counters stay
					d.o.Log.Warn(err.Error(), "list", l.Name)
				default:
					*last = is
				}
				return nil
			})
		}()
	}
	for f := range d.usage {
		if _, runs := d.feeds[f]; !runs {
			delete(d.usage, f)
		}
	}
}
