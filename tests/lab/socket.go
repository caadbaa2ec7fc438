package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir/control/demo/playground"
)

// Sender sends frames as they are.
type Sender struct {
	fd    int
	local bool
}

// Sender opens a socket at this end that is closed when the test ends.
func (e End) Sender(t testing.TB) *Sender {
	t.Helper()
	// Protocol 0: it receives nothing.
	return &Sender{fd: e.socket(t, 0, unix.PACKET_QDISC_BYPASS)}
}

// LocalSender is Sender of frames that pass TC on their way out, as what the host itself
// sends does. Frames that are dropped there count as sent.
func (e End) LocalSender(t testing.TB) *Sender {
	t.Helper()
	return &Sender{fd: e.socket(t, 0), local: true}
}

// Send sends a frame, and waits where the wire, a short queue, is full.
func (s *Sender) Send(frame []byte) error {
	err := s.TrySend(frame)
	for deadline := time.Now().Add(10 * time.Second); errors.Is(err, unix.ENOBUFS) && time.Now().Before(deadline); err = s.TrySend(frame) {
		time.Sleep(time.Millisecond) //nolint:forbidigo // nothing says that the wire has room
	}
	return err
}

// TrySend sends a frame, or returns unix.ENOBUFS where the wire is full, as a flood's
// frames find it.
func (s *Sender) TrySend(frame []byte) error {
	for {
		// The runtime's signals interrupt it.
		_, err := unix.Write(s.fd, frame)
		if s.local && err == unix.ENOBUFS {
			return nil
		}
		if err != unix.EINTR {
			return err
		}
	}
}

// SendAll sends frames as Send does.
func (s *Sender) SendAll(frames ...[]byte) error {
	for _, frame := range frames {
		if err := s.Send(frame); err != nil {
			return err
		}
	}
	return nil
}

// Receiver receives incoming frames, after XDP, and not outgoing ones.
type Receiver struct {
	fd    int
	frame []byte
	oob   []byte
}

// Receiver opens a socket at this end that is closed when the test ends.
func (e End) Receiver(t testing.TB) *Receiver {
	t.Helper()
	r := &Receiver{
		fd:    e.socket(t, unix.ETH_P_ALL, unix.PACKET_IGNORE_OUTGOING, unix.PACKET_AUXDATA),
		frame: make([]byte, 1<<17),
		oob:   make([]byte, 128),
	}
	if err := unix.SetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
		t.Fatal(err)
	}
	return r
}

// vlanOffset is the offset of a VLAN tag in a frame.
const (
	vlanOffset = 12
	vlanBytes  = 4
)

// Receive waits for the next frame, which is valid until the next call. It
// returns os.ErrDeadlineExceeded if none arrives.
func (r *Receiver) Receive(wait time.Duration) ([]byte, error) {
	flags := unix.MSG_DONTWAIT
	if wait > 0 {
		flags = 0
		timeout := unix.NsecToTimeval(max(wait, time.Microsecond).Nanoseconds()) // 0 would be for ever
		if err := unix.SetsockoptTimeval(r.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
			return nil, err
		}
	}
	// Before the frame there is room for the tag that the kernel takes off.
	n, oobn, _, _, err := unix.Recvmsg(r.fd, r.frame[vlanBytes:], r.oob, flags)
	for err == unix.EINTR { // by the runtime's signals; a timeout keeps it from going on by itself
		n, oobn, _, _, err = unix.Recvmsg(r.fd, r.frame[vlanBytes:], r.oob, flags)
	}
	if err == unix.EAGAIN {
		return nil, os.ErrDeadlineExceeded
	}
	if err != nil {
		return nil, err
	}
	frame := r.frame[vlanBytes : vlanBytes+n]
	messages, err := unix.ParseSocketControlMessage(r.oob[:oobn])
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA {
			continue
		}
		aux := (*unix.TpacketAuxdata)(unsafe.Pointer(&m.Data[0]))
		if aux.Status&unix.TP_STATUS_VLAN_VALID == 0 {
			continue
		}
		frame = r.frame[:vlanBytes+n]
		copy(frame, frame[vlanBytes:vlanBytes+vlanOffset])
		binary.BigEndian.PutUint16(frame[vlanOffset:], aux.Vlan_tpid)
		binary.BigEndian.PutUint16(frame[vlanOffset+2:], aux.Vlan_tci)
	}
	return frame, nil
}

// socket opens a packet socket with some options switched on.
func (e End) socket(t testing.TB, protocol uint16, options ...int) int {
	t.Helper()
	fd, err := playground.End(e).Socket(protocol, func(fd int) error {
		for _, option := range options {
			if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, option, 1); err != nil {
				return fmt.Errorf("option %d: %w", option, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s: %v", e.Iface, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}
