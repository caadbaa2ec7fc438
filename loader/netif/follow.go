package netif

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Follow calls fn with each interface that appears or changes in the target's
// network namespace, and with nil when one has gone or messages were lost. It
// returns once it is subscribed, and ends when done is closed. fn is called in one
// goroutine, which is in that namespace.
func (t Target) Follow(done <-chan struct{}, fn func(*Iface)) error {
	begun := make(chan error, 1)
	go func() {
		err := t.In(func(inode uint64) error {
			s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
			if err != nil {
				return err
			}
			begun <- nil
			ended := make(chan struct{})
			go func() {
				<-done
				s.Close()
				close(ended)
			}()
			defer func() { <-ended }()
			receive(s, inode, done, fn)
			return nil
		})
		select {
		case begun <- err:
		default: // it has long begun
		}
	}()
	if err := <-begun; err != nil {
		return fmt.Errorf("subscribe to changes of interfaces: %w", err)
	}
	return nil
}

// receive calls fn for the kernel's messages until the socket is closed.
func receive(s *nl.NetlinkSocket, inode uint64, done <-chan struct{}, fn func(*Iface)) {
	for {
		messages, from, err := s.Receive()
		select {
		case <-done:
			return
		default:
		}
		switch {
		case err != nil:
			fn(nil) // mostly because the buffer was full
			if !errors.Is(err, unix.ENOBUFS) {
				select { // do not spin
				case <-done:
					return
				case <-time.After(100 * time.Millisecond):
				}
			}
			continue
		case from.Pid != nl.PidKernel:
			continue
		}
		for _, m := range messages {
			if i, ok := interfaceOf(&m, inode); ok {
				fn(i)
			}
		}
	}
}

// interfaceOf returns the interface that a message is about, nil for one that has
// gone. ok is false for other messages.
func interfaceOf(m *syscall.NetlinkMessage, inode uint64) (i *Iface, ok bool) {
	// Bridges report their ports by the same messages, with another family.
	if len(m.Data) < unix.SizeofIfInfomsg || m.Data[0] != unix.AF_UNSPEC {
		return nil, false
	}
	switch m.Header.Type {
	case unix.RTM_DELLINK:
		return nil, true
	case unix.RTM_NEWLINK:
		header := unix.NlMsghdr(m.Header)
		l, err := netlink.LinkDeserialize(&header, m.Data)
		if err != nil {
			return nil, true // look which it was
		}
		return &Iface{l.Attrs(), inode, l.Type()}, true
	}
	return nil, false
}
