package observe

import (
	"time"

	"weir/control/export"
	"weir/control/observe/events"
	"weir/control/observe/traffic"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// samples are the dropped packets that are exported as sFlow.
type samples struct {
	oneIn uint32 // 0: none are
	end   func()
	ended chan struct{}
}

const (
	sampleDelay = 100 * time.Millisecond // the longest time that samples are gathered
	sampleRoom  = 2 * events.DefaultRoom // the most that are read and not gathered
	sampleBatch = events.DefaultRoom
)

// droppable are the reasons for which packets may be dropped.
var droppable = []events.Reason{
	verdict.Blocked, verdict.RateLimited, verdict.Heavy, verdict.Policed, verdict.Pattern, verdict.Looped,
	verdict.Truncated, verdict.Malformed, verdict.Unparsed, verdict.Overtagged,
}

// configure follows a configuration.
func (s *samples) configure(collectors []export.Collector, hub *events.Hub, to *export.Exporter) {
	oneIn := uint32(0)
	for _, c := range collectors {
		if n := uint32(c.Sampling); c.SFlow != "" && (oneIn == 0 || n < oneIn) {
			oneIn = n
		}
	}
	if oneIn == s.oneIn {
		return
	}
	s.close()
	if s.oneIn = oneIn; oneIn == 0 {
		return
	}
	all, end := hub.Subscribe(events.Want{Reasons: droppable, OneIn: oneIn, Frames: true, Room: sampleRoom})
	s.end, s.ended = end, make(chan struct{})
	go func() {
		defer close(s.ended)
		gather(all, to.Send)
	}()
}

// close ends what configure has begun; what was gathered is exported.
func (s *samples) close() {
	if s.oneIn != 0 {
		s.end()
		<-s.ended
		s.oneIn = 0
	}
}

// gather sends events in batches until there are no more.
func gather(all <-chan events.Event, send func(export.Batch)) {
	often := time.NewTicker(sampleDelay)
	defer often.Stop()
	b := new(export.Samples)
	flush := func() {
		if len(b.Packets) > 0 || b.Lost > 0 {
			send(export.Batch{Time: time.Now(), Samples: b})
			b = new(export.Samples)
		}
	}
	defer flush()
	for {
		select {
		case e, ok := <-all:
			switch {
			case !ok:
				return
			case e.Lost > 0:
				b.Lost += e.Lost
			case e.Dropped && e.Frame != nil:
				b.Packets = append(b.Packets, SampleOf(&e))
			}
			if len(b.Packets) >= sampleBatch {
				flush()
			}
		case <-often.C:
			flush()
		}
	}
}

// SampleOf returns the sample that an event of a dropped packet, with its frame, is exported as.
func SampleOf(e *events.Event) export.Sample {
	return export.Sample{
		Interface: uint32(e.Index), Out: e.Out, Reason: e.Reason, List: e.List,
		Length: uint32(e.Length), Frame: e.Frame, OneIn: e.OneIn,
	}
}

// interfaces returns what was counted on interfaces, of which index returns the indexes.
func interfaces(counted []traffic.Interface, index func(netif.Target) uint32) (all []export.Interface) {
	at := make(map[netif.Target]int) // of incoming packets
	for _, c := range counted {
		n := new(export.Traffic)
		for _, reason := range c.Counts {
			n.Bytes += reason.Bytes
			if reason.Drops {
				n.Dropped += reason.Packets
			} else {
				n.Passed += reason.Packets
			}
		}
		id := c.Target
		id.Out = false
		i, known := at[id]
		if !known {
			number := index(c.Target)
			if number == 0 {
				continue // it is gone
			}
			i, at[id] = len(all), len(all)
			all = append(all, export.Interface{Index: number, Name: c.Iface})
		}
		if c.Out {
			all[i].Out = n
		} else {
			all[i].In = n
		}
	}
	return all
}

// SendCounters exports what was counted on each interface.
func (x *Exports) SendCounters(now time.Time, meter *traffic.Meter, attached []*loader.Attachment) {
	if x.samples.oneIn == 0 {
		return
	}
	counted, _ := meter.Read()
	b := &export.Samples{Interfaces: interfaces(counted, func(t netif.Target) uint32 {
		for _, a := range attached {
			if a.Target() == t {
				if index, err := a.Index(); err == nil {
					return uint32(index)
				}
			}
		}
		return 0
	})}
	x.Send(export.Batch{Time: now, Samples: b})
}
