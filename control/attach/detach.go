package attach

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"weir/loader"
	"weir/loader/netif"
)

// Detach detaches weir from an interface, in both directions, and removes the pins that are
// left of one that is gone. It fails where weir is not attached.
func Detach(pins loader.Pins, t netif.Target) error {
	out := t
	out.Out = true
	err := detach(pins, out)
	if bad := detach(pins, t); bad != nil && !(errors.Is(bad, loader.ErrNotAttached) && err == nil) {
		return bad
	}
	if errors.Is(err, loader.ErrNotAttached) || errors.Is(err, netif.ErrNoNetns) {
		return nil
	}
	return err
}

// detach detaches weir from an interface in one direction.
func detach(pins loader.Pins, t netif.Target) error {
	a, err := pins.Open(t)
	if errors.Is(err, netif.ErrNoNetns) {
		// The namespace is gone as well; the pins remember its name.
		if a = severed(pins, t); a != nil {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	return errors.Join(a.DetachAny(), a.Close())
}

// severed returns what is left of an interface that is gone, or nil.
func severed(pins loader.Pins, t netif.Target) *loader.Attachment {
	list, _ := pins.List() // damaged pins are not what is looked for
	var found *loader.Attachment
	for _, a := range list {
		if found == nil && a.Target() == t && a.Severed() {
			found = a
			continue
		}
		a.Close()
	}
	return found
}

// DetachAll detaches weir from all interfaces, and returns them.
func DetachAll(pins loader.Pins) ([]netif.Target, error) {
	list, err := pins.List()
	detached := []netif.Target{}
	for _, a := range list {
		if bad := a.DetachAny(); bad != nil {
			err = errors.Join(err, bad)
		} else {
			detached = append(detached, a.Target())
		}
		a.Close()
	}
	return detached, err
}

// DetachOnly is DetachAll where weir is attached to one interface at most;
// otherwise it fails and changes nothing.
func DetachOnly(pins loader.Pins) ([]netif.Target, error) {
	list, err := pins.List()
	var names []string
	for _, a := range list {
		t := a.Target()
		t.Out = false
		if !slices.Contains(names, t.String()) {
			names = append(names, t.String())
		}
		a.Close()
	}
	if err != nil {
		return nil, err
	}
	if len(names) > 1 {
		return nil, fmt.Errorf("attached to more than one interface (%s): say which with --iface, or --all", strings.Join(names, ", "))
	}
	return DetachAll(pins)
}
