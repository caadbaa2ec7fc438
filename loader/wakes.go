package loader

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir/bpf"
	"weir/loader/kernelerr"
)

// Wakes is a ring buffer. Programs write to it to wake this process, while [Trackers.SetWake]
// asks for that.
type Wakes struct {
	ring               *array
	read               bool     // by others: Wait consumes nothing
	file               *os.File // whose readability the runtime waits for
	consumed, produced []byte   // pages of the ring buffer
}

// NewWakes makes a ring buffer for [Config.Wakes], the smallest that the kernel has. Programs of
// all generations can write to one.
func NewWakes() (_ *Wakes, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("wakes by programs: %w", kernelerr.Permission(err))
		}
	}()
	spec, _, err := statsSpec()
	if err != nil {
		return nil, err
	}
	ring, err := newWakes(spec.Maps[bpf.WeirMapWakes])
	if err != nil {
		return nil, err
	}
	return wakesOf(ring, false)
}

// EventWakes returns what waits until there are events that [Stats.Events] has not read yet.
func (s *Stats) EventWakes() (w *Wakes, err error) {
	s.read(func(k pinnedMaps) { w, err = wakesOf(k[bpf.WeirMapEvents].share(), true) })
	if err != nil {
		return nil, fmt.Errorf("wait for events: %w", err)
	}
	return w, nil
}

// wakesOf waits for a ring buffer, which it closes.
func wakesOf(ring *array, read bool) (_ *Wakes, err error) {
	w := &Wakes{ring: ring, read: read}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	page := os.Getpagesize()
	if w.consumed, err = unix.Mmap(w.ring.m.FD(), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	if w.produced, err = unix.Mmap(w.ring.m.FD(), int64(page), page, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	fd, err := unix.FcntlInt(uintptr(w.ring.m.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	w.file = os.NewFile(uintptr(fd), bpf.WeirMapWakes)
	return w, nil
}

// newWakes makes a ring buffer of the smallest size that the kernel has.
func newWakes(spec *ebpf.MapSpec) (*array, error) {
	spec.MaxEntries = uint32(os.Getpagesize())
	return newArray(spec)
}

// Wait waits until a program has woken this process, or events are to be read, without a thread.
// It fails after End. One goroutine may call it.
func (w *Wakes) Wait() error {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	produced, consumed := (*uint64)(unsafe.Pointer(&w.produced[0])), (*uint64)(unsafe.Pointer(&w.consumed[0]))
	return conn.Read(func(uintptr) bool {
		now := atomic.LoadUint64(produced)
		if now == atomic.LoadUint64(consumed) {
			return false
		}
		if !w.read {
			atomic.StoreUint64(consumed, now) // nothing of it is read
		}
		return true
	})
}

// End makes Wait fail.
func (w *Wakes) End() error { return w.file.Close() }

// Close releases the memory. Wait must have returned.
func (w *Wakes) Close() error {
	if w == nil {
		return nil
	}
	var errs []error
	if w.file != nil {
		if err := w.file.Close(); !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	for _, page := range [][]byte{w.consumed, w.produced} {
		if page != nil {
			errs = append(errs, unix.Munmap(page))
		}
	}
	return errors.Join(append(errs, w.ring.Close())...)
}

// makeWakes sets the ring buffer that the generation's programs write to: the configuration's, or
// one that no process reads.
func (g *Generation) makeWakes() (err error) {
	if w := g.config.Wakes; w != nil {
		g.maps[bpf.WeirMapWakes] = w.ring.share()
		return nil
	}
	g.maps[bpf.WeirMapWakes], err = newWakes(g.spec.Maps[bpf.WeirMapWakes])
	if err != nil {
		delete(g.maps, bpf.WeirMapWakes)
	}
	return err
}

// wakeBit is the bit of a row's banks that asks programs to wake this process, WAKE_BIT.
const wakeBit = 63

// SetWake makes programs wake this process, or no longer, when a flow enters the flow memory
// or passes a step of its threshold.
func (t *Trackers) SetWake(on bool) {
	now := atomic.LoadUint64(&t.rows[banksWord])
	if on {
		t.eachRow(banksWord, now|1<<wakeBit)
	} else {
		t.eachRow(banksWord, now&^(1<<wakeBit))
	}
}

// Wakes reports whether programs wake this process: SetWake has said so, or did so in a process
// before this one.
func (t *Trackers) Wakes() bool { return atomic.LoadUint64(&t.rows[banksWord])>>wakeBit != 0 }

// IsPresent reports whether the programs of the stats still count in this memory: they may have
// gone over to another one.
func (t *Trackers) IsPresent(s *Stats) (is bool) {
	s.read(func(k pinnedMaps) {
		for name, m := range t.shared {
			if k[name] != m {
				return
			}
		}
		is = true
	})
	return is
}
