package listfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"weir/tests/long"
	"weir/tests/wait"
)

// endless is a text that repeats a line, and counts what was read of it.
type endless struct {
	line string
	most int // bytes; 0: endless
	read int
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n+len(e.line) <= len(p) {
		if e.most > 0 && e.read >= e.most {
			return n, io.EOF
		}
		n += copy(p[n:], e.line)
		e.read += len(e.line)
	}
	return n, nil
}

// A text that can only be rejected is not read to its end.
func TestNotReadOn(t *testing.T) {
	long.Seconds(t)
	for _, c := range []struct {
		line string
		o    Options
		want error
	}{
		{"x\n", Options{}, ErrTooManyBad},
		{"192.0.2.1\nx\n", Options{MaxBad: 0.4}, ErrTooManyBad},
		{"\n", Options{MaxLines: 1_000_000}, ErrTooManyLines},
		{"# a comment\n", Options{MaxLines: 1_000_000}, ErrTooManyLines},
		{"# a comment\n", Options{Work: NewWork(t.Context(), 50*time.Millisecond)}, ErrTooMuchWork},
		{"192.0.2.1\n192.0.2.2\n", Options{MaxEntries: 100_000}, ErrTooManyEntries},
		{"tcp *:* > *:0-2047\nudp *:* > *:0-2047\n", Options{MaxEntries: 100_000}, ErrTooManyEntries},
	} {
		in := &endless{line: c.line, most: 1 << 30}
		e, r, err := Parse("f", in, c.o)
		if !errors.Is(err, c.want) || e.Len() > 0 {
			t.Errorf("%q: %d entries, error %v, want %v", c.line, e.Len(), err, c.want)
		}
		if in.read > 100<<20 {
			t.Errorf("%q: %d MiB were read, %d lines", c.line, in.read>>20, r.Lines)
		}
	}
}

// Bad lines reject a text early only where there are many.
func TestBadLinesFirst(t *testing.T) {
	for bad, want := range map[int]error{hopelessLines - 1: nil, 3 * hopelessLines: ErrTooManyBad} {
		text := strings.Repeat("x\n", bad) + strings.Repeat("192.0.2.1\n", 1_000_000)
		if _, _, err := Parse("f", strings.NewReader(text), Options{}); !errors.Is(err, want) {
			t.Errorf("%d bad lines of a million: error %v, want %v", bad, err, want)
		}
	}
}

// Reading ends with its context.
func TestParseEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w := NewWork(ctx, 0)
	in := &endless{line: "# a comment\n"}
	done := make(chan error, 1)
	go func() {
		_, _, err := Parse("f", in, Options{Work: w})
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// More works than processors end, and each counts its own time.
func TestManyWorks(t *testing.T) {
	const works = 50
	done := make(chan error, works)
	for range works {
		go func() {
			w := NewWork(t.Context(), 0)
			in := &endless{line: "192.0.2.0/30\n\n", most: 4 << 20}
			e, _, err := Parse("f", in, Options{Work: w})
			if err == nil && (e.Len() == 0 || w.Spent() <= 0) {
				err = fmt.Errorf("%d entries, %v", e.Len(), w.Spent())
			}
			done <- err
		}()
	}
	for range works {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Of lines with ranges of ports no more is in memory than there is room for, and one line.
func TestRoomOfPorts(t *testing.T) {
	line := "tcp *:* > *:0-2047\nudp *:* > *:0-2047\n"
	c := &chunk{parser: newParser(Options{}), text: []byte(strings.Repeat(line, roomLines/2-1)), room: newRoom(1000)}
	c.parse()
	if n := c.parser.out.Weight(); !c.room.exceeded() || n > roomWeight+4*maxFlows {
		t.Errorf("entries of weight %d where there is room for 1000", n)
	}
}

// Equal lines in a row, and equal ranges wherever they are, take the memory of one.
func TestEqualLines(t *testing.T) {
	for text, most := range map[string]int{
		"192.0.2.1\n":             1000,
		"any *:* > 192.0.2.1:*\n": 1000,
		"2001:db8::1-2001:db8:ffff:ffff:ffff:ffff:ffff:fffe\n":                                     1000,
		"2001:db8::1-2001:db8:ffff:ffff:ffff:ffff:ffff:fffe\n0.0.0.1-255.255.255.254\n192.0.2.1\n": 400_000,
	} {
		e, r, err := Parse("f", strings.NewReader(strings.Repeat(text, 300_000)), Options{MaxEntries: 1_000_000})
		if err != nil || r.Good != 300_000*strings.Count(text, "\n") || e.Len() > most {
			t.Errorf("%q: %d entries of %d lines, error %v", text, e.Len(), r.Good, err)
		}
		one, _ := serial("f", []byte(text), false)
		if !equal(e, one) {
			t.Errorf("%q: other entries than those of one", text)
		}
	}
}

// The work that has taken the least time is the next to have a processor, before those that go
// behind the others.
func TestTurns(t *testing.T) {
	var all turns
	order := make(chan string, 4)
	for _, c := range []struct {
		name   string
		spent  time.Duration
		behind bool
	}{{"failed", 0, true}, {"large", 5 * time.Second, false}, {"small", time.Millisecond, false}, {"new", 0, false}} {
		w := NewWork(t.Context(), 0)
		w.spent.Store(int64(c.spent))
		if c.behind {
			w.Behind()
		}
		go func() {
			all.take(w)
			order <- c.name
			all.give()
		}()
	}
	wait.For(t, "four that wait", func() bool {
		all.mu.Lock()
		defer all.mu.Unlock()
		return len(all.waiting) == 4
	})
	all.give()
	for _, want := range []string{"new", "small", "large", "failed"} {
		if got := <-order; got != want {
			t.Errorf("%s is the next, want %s", got, want)
		}
	}
}

// Works that have too many entries together wait, all but the first, until one of them is released.
func TestTogether(t *testing.T) {
	first, second := NewWork(t.Context(), 0), NewWork(t.Context(), 0)
	first.Bound(0, 1000)
	second.Bound(0, 1000)
	first.reserve(600)
	processors.take(second)
	waits := make(chan struct{})
	go func() {
		second.reserve(600)
		processors.give()
		close(waits)
	}()
	wait.For(t, "the second work", func() bool {
		reserved.Lock()
		defer reserved.Unlock()
		return reserved.all == 1200
	})
	first.reserve(600) // it goes on
	select {
	case <-waits:
		t.Error("the second work did not wait")
	default:
	}
	first.Release()
	<-waits
	second.Release()
	if reserved.all != 0 || len(reserved.by) != 0 {
		t.Errorf("%d entries of %d works stay", reserved.all, len(reserved.by))
	}
}
