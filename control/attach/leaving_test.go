package attach

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/loader/bpffs"
	"weir/loader/hooks"
	"weir/tests/lab"
	"weir/tests/wait"
)

// withoutFiles calls fn while no file can be opened, so that what needs the lock of the pins fails.
func withoutFiles(t *testing.T, fn func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	fn()
	if err := syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: was.Cur, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
}

// beginToLeave starts a manager, and has it fail to detach from the end of a wire that it is not to
// filter any more.
func beginToLeave(t *testing.T, hook func(*Target)) (m *Manager, c Config, targets []Target, log *bytes.Buffer) {
	t.Helper()
	log = new(bytes.Buffer)
	c, targets = options(t, log, lab.New(t).B)
	hook(&targets[0])
	m = begin(t, c, targets)
	withoutFiles(t, func() { m.Retarget(nil) })
	if got := pinned(t, c); len(got) != 1 || len(m.leaving.interfaces) != 1 {
		t.Fatalf("pinned: %v, leaving: %v:\n%s", got, m.leaving.interfaces, log)
	}
	return m, c, targets, log
}

// followUntil calls Follow until so holds.
func (m *Manager) followUntil(t *testing.T, what string, so func() bool) {
	t.Helper()
	wait.For(t, what, func() bool {
		m.leaving.retry = time.Time{} // do not wait for it
		if err := m.Follow(); err != nil {
			t.Fatal(err)
		}
		return so()
	})
}

func native(*Target) {}

var hookChoices = map[string]func(*Target){
	"native": native,
	"tc":     func(t *Target) { t.XDP = hooks.TC },
}

// Detaching that has failed is tried again, and says so once. The manager waits for no lock then.
func TestDetachRetried(t *testing.T) {
	m, c, _, log := beginToLeave(t, native)
	defer m.Stop(false)
	unlock := lockPins(t, c.Pins)
	began := time.Now()
	for range 3 {
		m.leaving.retry = time.Time{}
		if err := m.Follow(); err != nil {
			t.Fatal(err)
		}
		if m.isUnchanged() {
			t.Error("Follow would not try again")
		}
	}
	if took := time.Since(began); took >= bpffs.Patience {
		t.Errorf("Follow has waited %v for the lock", took)
	}
	unlock()
	m.followUntil(t, "nothing is pinned", func() bool { return len(pinned(t, c)) == 0 && len(m.leaving.interfaces) == 0 })
	for _, text := range []string{"its last lists still filter it", "level=ERROR", "no longer filtered"} {
		if n := strings.Count(log.String(), text); n != 1 {
			t.Errorf("%q is logged %d times:\n%s", text, n, log)
		}
	}
}

// While detaching fails, others are tried as well.
func TestDetachFailsAgain(t *testing.T) {
	m, c, _, log := beginToLeave(t, native)
	defer m.Stop(false)
	first := m.leaving.interfaces[0]
	other := &managedInterface{Target: first.Target}
	m.leaving.interfaces = append(m.leaving.interfaces, other)
	m.left([]detached{{first, errors.New("no")}})
	if got := m.leaving.interfaces; !slices.Equal(got, []*managedInterface{other, first}) || time.Until(m.leaving.retry) <= 0 {
		t.Errorf("leaving: %v, tried again at %v", got, m.leaving.retry)
	}
	m.leaving.interfaces = []*managedInterface{first}
	m.followUntil(t, "nothing is pinned", func() bool { return len(pinned(t, c)) == 0 })
	if n := strings.Count(log.String(), "level=ERROR"); n != 2 {
		t.Errorf("%d errors are logged, want one for each reason:\n%s", n, log)
	}
}

// An interface that is named again is adopted, and not detached from on account of before.
func TestNamedAgainWhileLeaving(t *testing.T) {
	for name, hook := range hookChoices {
		t.Run(name, func(t *testing.T) {
			m, c, targets, log := beginToLeave(t, hook)
			defer m.Stop(false)
			before := m.leaving.interfaces[0].ProgramID()
			m.Retarget(targets)
			m.followUntil(t, "nothing is leaving", func() bool { return len(m.leaving.interfaces) == 0 })
			i := m.interfaces[0]
			if !i.filtered() || !i.adopted || i.ProgramID() == before || len(pinned(t, c)) != 1 || len(m.Names()) != 1 {
				t.Errorf("not adopted: %+v, pinned: %v:\n%s", i, pinned(t, c), log)
			}
			if strings.Contains(log.String(), "no longer filtered") {
				t.Errorf("log:\n%s", log)
			}
		})
	}
}

// An interface that is named again, and could not be attached to yet, is not detached from before.
func TestNotDetachedBeforeAdopted(t *testing.T) {
	m, c, targets, log := beginToLeave(t, native)
	defer m.Stop(false)
	m.Retarget(targets)
	m.interfaces = []*managedInterface{{Target: targets[0].Target, XDP: targets[0].XDP, retry: time.Now().Add(time.Hour)}}
	m.leaving.retry = time.Time{}
	if err := m.Follow(); err != nil {
		t.Fatal(err)
	}
	if m.leaving.tried != nil || len(m.leaving.interfaces) != 1 || len(pinned(t, c)) != 1 {
		t.Errorf("leaving: %+v, pinned: %v:\n%s", m.leaving, pinned(t, c), log)
	}
	m.interfaces[0].retry = time.Time{}
	m.followUntil(t, "nothing is leaving", func() bool { return len(m.leaving.interfaces) == 0 })
	if !m.interfaces[0].filtered() || len(pinned(t, c)) != 1 {
		t.Errorf("not adopted, pinned: %v:\n%s", pinned(t, c), log)
	}
}

// What is left to detach from does not filter on where filters are kept, unless it is named again.
func TestStopWhileLeaving(t *testing.T) {
	for _, again := range []bool{false, true} {
		m, c, targets, log := beginToLeave(t, native)
		if again {
			m.Retarget(targets)
		}
		if err := m.Stop(true); err != nil {
			t.Fatal(err)
		}
		if got := pinned(t, c); len(got) > 0 != again {
			t.Errorf("named again: %v, pinned: %v:\n%s", again, got, log)
		}
	}
}
