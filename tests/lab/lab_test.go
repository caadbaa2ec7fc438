package lab_test

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"weir/tests/lab"
	"weir/tests/wait"
)

// Frames arrive as they were sent, tags included.
func TestFrames(t *testing.T) {
	l := lab.New(t)
	payload := append([]byte{0x88, 0xb5}, bytes.Repeat([]byte("weir"), 12)...)
	for name, tags := range map[string][]byte{
		"plain": nil,
		"VLAN":  {0x81, 0, 0x20, 7},
		"QinQ":  {0x88, 0xa8, 0, 9, 0x81, 0, 0, 7},
	} {
		t.Run(name, func(t *testing.T) {
			frame := slices.Concat(l.B.MAC, l.A.MAC, tags, payload)
			tx, rx := l.A.Sender(t), l.B.Receiver(t)
			if err := tx.Send(frame); err != nil {
				t.Fatal(err)
			}
			deadline := wait.Deadline()
			for {
				got, err := rx.Receive(time.Until(deadline))
				if err != nil {
					t.Fatal(err)
				}
				if bytes.Equal(got, frame) {
					return
				}
				t.Logf("received %x", got)
			}
		})
	}
}

func TestReceiveTimesOut(t *testing.T) {
	l := lab.New(t)
	rx := l.A.Receiver(t)
	for _, wait := range []time.Duration{-1, 0, 10 * time.Millisecond} {
		for { // what the kernel itself may send
			_, err := rx.Receive(wait)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}
