// Package clock keeps the steady time of a host. Entries, trials and limits that end record their ends by
// it. It advances as CLOCK_BOOTTIME does, so that setting the wall clock ends nothing early and prolongs nothing.
//
// Steady times look like times of the wall clock and are as far apart as those, but each step of
// the wall clock moves it away from them: people are shown [Clock.Wall].
//
// After another boot, steady time goes on where it was last saved. How long the host was off counts
// only if the wall clock was synchronized then, and is when the file is first opened after the boot
// (STA_UNSYNC of adjtimex(2)): later it could not, since what was recorded meanwhile would end early.
// A host that crashes forgets up to [Interval] as well.
package clock

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/control/durable"
)

// File is the name of the file below a state directory.
const File = "clock.json"

// Interval is how often steady time is saved.
const Interval = time.Minute

// leastStep is the smallest step of the wall clock that counts as one. The difference of the two
// clocks is constant otherwise, as both are slewed.
const leastStep = 500 * time.Millisecond

// maxSteps bounds the steps that are remembered.
const maxSteps = 16

// version is the version of the file's format.
const version = 1

// Host has the clocks of a host.
type Host interface {
	Boot() string // identifies the present boot, "" if that is unknown
	Wall() time.Time
	Ran() time.Duration // CLOCK_BOOTTIME
	Synchronized() bool // whether something sets the wall clock
}

// This returns the clocks of the host that runs this program.
func This() Host { return this{} }

type this struct{}

func (this) Boot() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}

func (this) Wall() time.Time { return time.Now() }

func (this) Ran() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // every kernel has it
	}
	return time.Duration(t.Nano())
}

func (this) Synchronized() bool {
	var t unix.Timex
	_, err := unix.Adjtimex(&t)
	return err == nil && t.Status&unix.STA_UNSYNC == 0
}

// saved are the contents of the file.
type saved struct {
	Version int                `json:"version"`
	Boot    string             `json:"boot"`
	Ran     time.Duration      `json:"ran_ns"`          // when the file was written
	Start   time.Time          `json:"start"`           // steady time when the host had run for 0 ns
	Wall    time.Time          `json:"wall"`            // the wall clock then, by how it was set when the file was written
	Synced  bool               `json:"synchronized"`    // the wall clock, when the file was written
	Steps   []api.ClockSetting `json:"steps,omitempty"` // of steady times
}

// Clock is the steady time of a host. It is safe for concurrent use. A nil Clock has
// the wall clock as its steady time.
type Clock struct {
	host Host
	path string // "": nothing is saved
	log  *slog.Logger

	mu     sync.Mutex
	now    saved
	kept   time.Duration // when it was last saved, as the host's Ran
	failed string        // why it could not be saved, as it was logged
}

// Open returns the clock of a host whose file is below a state directory, "" for none. It only reads
// the file: who owns the directory calls [Clock.Save] before it records anything. A file that cannot
// be used is logged: steady time begins anew, as the wall clock is.
func Open(h Host, state string, log *slog.Logger) *Clock {
	c := &Clock{host: h, log: log}
	ran, wall := c.look()
	boot := h.Boot()
	c.now = saved{Boot: boot, Start: wall, Wall: wall}
	if state == "" {
		return c
	}
	c.path = filepath.Join(state, File)
	text, err := os.ReadFile(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return c
	}
	var before saved
	if err == nil {
		err = json.Unmarshal(text, &before)
	}
	if err == nil && before.Version != version {
		err = fmt.Errorf("it has version %d, and this program knows %d", before.Version, version)
	}
	if err != nil {
		log.Error("what has a TTL may end early or late, since the time that has passed is unknown: "+err.Error(), "file", c.path)
		return c
	}
	last := before.Start.Add(before.Ran)
	c.now = before
	switch {
	case before.Boot != "" && before.Boot == boot && ran >= before.Ran:
	case boot == "": // perhaps the same boot: nothing has passed for certain
		c.now.Start, c.now.Wall = last.Add(-ran), wall
	default:
		c.now.Start, c.now.Wall = last, wall
		if off := wall.Sub(before.Wall.Add(before.Ran)); off > 0 && before.Synced && h.Synchronized() {
			c.now.Start = last.Add(off)
		}
	}
	c.now.Boot = boot
	c.follow()
	return c
}

// look returns how long the host has run, and when that began by the wall clock as it is set now.
func (c *Clock) look() (ran time.Duration, start time.Time) {
	for range 10 { // the process may be interrupted between the clocks
		before := c.host.Ran()
		wall := c.host.Wall().Round(0)
		ran = c.host.Ran()
		if start = wall.Add(-ran); ran-before < leastStep/10 {
			break
		}
	}
	return ran, start
}

// follow notes a step of the wall clock.
func (c *Clock) follow() {
	ran, start := c.look()
	if step := start.Sub(c.now.Wall); step.Abs() >= leastStep {
		c.now.Wall = start
		c.now.Steps = append(c.now.Steps, api.ClockSetting{At: c.now.Start.Add(ran), By: step.Round(time.Millisecond).Seconds()})
		c.now.Steps = slices.Clone(c.now.Steps[max(0, len(c.now.Steps)-maxSteps):])
		c.log.Warn("the wall clock was set: what has a TTL ends when it would have", "by", step.Round(time.Millisecond).String(), "now", start.Add(ran))
		c.kept = 0
	}
}

// save writes the file, and logs why that failed, once.
func (c *Clock) save() {
	if c.path == "" {
		return
	}
	ran := c.host.Ran()
	c.now.Version, c.now.Ran, c.now.Synced = version, ran, c.host.Synchronized()
	text, err := json.Marshal(c.now)
	if err == nil {
		err = durable.WriteFile(c.path, append(text, '\n'))
	}
	if c.kept = ran; err != nil && err.Error() != c.failed {
		c.log.Error("what has a TTL would end later after a restart of the host: " + err.Error())
	}
	if c.failed = ""; err != nil {
		c.failed = err.Error()
	}
}

// Follow notes steps of the wall clock, and saves steady time where that is due. Call it each second.
func (c *Clock) Follow() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follow()
	synced := c.now.Synced
	if c.kept == 0 || c.host.Ran()-c.kept >= Interval || c.host.Synchronized() != synced {
		c.save()
	}
}

// Save saves steady time, as at the end of the program.
func (c *Clock) Save() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follow()
	c.save()
}

// Ahead returns how far the wall clock is ahead of steady time.
func (c *Clock) Ahead() time.Duration {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follow()
	return c.now.Wall.Sub(c.now.Start)
}

// Now returns the time by the wall clock, and how far that is ahead of steady time: of one moment, though
// the clock may be set meanwhile.
func (c *Clock) Now() (wall time.Time, ahead time.Duration) {
	if c == nil {
		return time.Now(), 0
	}
	for range 10 { // it is set no more often
		ahead = c.Ahead()
		if wall = c.host.Wall(); c.Ahead() == ahead {
			break
		}
	}
	return wall, ahead
}

// Steady returns the steady time of a time of the wall clock, zero for zero. Where the clock was set
// since [time.Now] returned it, that does not matter.
func (c *Clock) Steady(t time.Time) time.Time { return c.SteadyNow()(t) }

// SteadyNow returns [Clock.Steady] by one reading of the clocks, which takes longer than the rest: for many
// times.
func (c *Clock) SteadyNow() func(time.Time) time.Time {
	now, ahead := c.Now()
	return func(t time.Time) time.Time {
		if t.IsZero() {
			return t
		}
		return shown(t, now).Add(-ahead)
	}
}

// Wall returns a steady time by the wall clock, zero for zero, with the monotonic clock of the
// process.
func (c *Clock) Wall(steady time.Time) time.Time {
	if steady.IsZero() {
		return steady
	}
	now, ahead := c.Now()
	return now.Add(steady.Add(ahead).Sub(now.Round(0)))
}

// Status returns how the clock was set, of which the last steps are known.
func (c *Clock) Status() api.Clock {
	ahead := c.Ahead()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := api.Clock{Synchronized: c.host.Synchronized(), Settings: slices.Clone(c.now.Steps)}
	for i := range s.Settings {
		s.Settings[i].At = s.Settings[i].At.Add(ahead)
	}
	return s
}

// Optional returns a time by another clock, as [Clock.Steady], [Clock.Wall] or [Shown] have it, nil for nil.
func Optional(by func(time.Time) time.Time, t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	return new(by(*t))
}

// Shown returns a time of this process by the wall clock as it is set now: another one where that was
// set since [time.Now] returned it.
func Shown(t time.Time) time.Time { return shown(t, time.Now()) }

func shown(t, now time.Time) time.Time {
	if by := now.Add(t.Sub(now)).Round(0); by.Sub(t.Round(0)).Abs() >= leastStep {
		return by
	}
	return t
}
