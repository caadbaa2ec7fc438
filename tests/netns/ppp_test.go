package netns

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/tests/lab"
)

const (
	linePPP = 3 // the line discipline N_PPP

	// Protocols (RFC 1661).
	pppIPv4 = 0x21
	pppIPv6 = 0x57
)

// serial is the far end of a PPP link: packets in HDLC frames over a pseudoterminal
// (RFC 1662).
type serial struct {
	line, near, channel, unit *os.File
	read                      []byte // of frames that are not complete
}

// ppp makes a PPP interface of a number in the namespace of an end. Nothing is negotiated.
func ppp(t *testing.T, at lab.End, number int32, name string) *serial {
	t.Helper()
	var s serial
	at.In(t, func() {
		try := func(what string, err error) {
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		var err error
		s.channel, err = os.OpenFile("/dev/ppp", os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
			t.Skip("this kernel has no PPP")
		}
		try("PPP channel", err)
		s.unit, err = os.OpenFile("/dev/ppp", os.O_RDWR, 0)
		try("PPP unit", err)
		line, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		try("pseudoterminal", err)
		s.line = os.NewFile(uintptr(line), "ptmx")
		try("unlock", unix.IoctlSetPointerInt(line, unix.TIOCSPTLCK, 0))
		near, err := unix.IoctlRetInt(line, unix.TIOCGPTPEER) // without flags it can only be read
		try("its other end", err)
		s.near = os.NewFile(uintptr(near), "pts")
		try("line discipline", unix.IoctlSetPointerInt(near, unix.TIOCSETD, linePPP))
		channel, err := unix.IoctlGetInt(near, unix.PPPIOCGCHAN)
		try("number of the channel", err)
		try("attach the channel", unix.IoctlSetPointerInt(int(s.channel.Fd()), unix.PPPIOCATTCHAN, channel))
		try("make a unit", unix.IoctlSetPointerInt(int(s.unit.Fd()), unix.PPPIOCNEWUNIT, int(number)))
		try("connect them", unix.IoctlSetPointerInt(int(s.channel.Fd()), unix.PPPIOCCONNECT, int(number)))
		link, err := netlink.LinkByName(name)
		try(name, err)
		try("up", netlink.LinkSetUp(link))
	})
	return &s
}

func (s *serial) Close() error {
	return errors.Join(s.unit.Close(), s.channel.Close(), s.near.Close(), s.line.Close())
}

func (s *serial) SetReadDeadline(at time.Time) error { return s.line.SetReadDeadline(at) }

// Write sends an IP packet.
func (s *serial) Write(p []byte) (int, error) {
	protocol := uint16(pppIPv4)
	if p[0]>>4 == 6 {
		protocol = pppIPv6
	}
	frame := append(binary.BigEndian.AppendUint16([]byte{0xff, 3}, protocol), p...)
	frame = binary.LittleEndian.AppendUint16(frame, ^frameCheck(frame))
	out := []byte{0x7e}
	for _, b := range frame {
		if b < 0x20 || b == 0x7d || b == 0x7e {
			out = append(out, 0x7d)
			b ^= 0x20
		}
		out = append(out, b)
	}
	if _, err := s.line.Write(append(out, 0x7e)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Read receives an IP packet.
func (s *serial) Read(p []byte) (int, error) {
	for {
		end := bytes.IndexByte(s.read, 0x7e)
		if end < 0 {
			b := make([]byte, 4096)
			n, err := s.line.Read(b)
			if err != nil {
				return 0, err
			}
			s.read = append(s.read, b[:n]...)
			continue
		}
		var frame []byte
		for i := 0; i < end; i++ {
			b := s.read[i]
			if b == 0x7d && i+1 < end {
				i++
				b = s.read[i] ^ 0x20
			}
			frame = append(frame, b)
		}
		s.read = s.read[end+1:]
		if len(frame) > 6 && frameCheck(frame) == 0xf0b8 { // what remains of a whole frame
			return copy(p, frame[4:len(frame)-2]), nil
		}
	}
}

// frameCheck is the sum of a frame, before its complement is sent (RFC 1662, C.2).
func frameCheck(frame []byte) uint16 {
	sum := uint16(0xffff)
	for _, b := range frame {
		sum ^= uint16(b)
		for range 8 {
			low := sum & 1
			sum >>= 1
			if low == 1 {
				sum ^= 0x8408
			}
		}
	}
	return sum
}
