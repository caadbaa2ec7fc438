package measure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// xdpFilterPins is where xdp-filter pins its maps in every network namespace, so
// a machine can run only one.
const xdpFilterPins = "/sys/fs/bpf/xdp-filter"

// xdpfilter is the filter of xdp-tools. Each command adds one address.
type xdpfilter struct {
	place
	loaded bool
}

func newXDPFilter(p place) contender { return &xdpfilter{place: p} }

func (x *xdpfilter) prepare(b *blocklist) error {
	if _, err := os.Stat(xdpFilterPins); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("xdp-filter is running on this machine, or has left %s behind", xdpFilterPins)
	}
	if _, err := x.wire.run(nil, "xdp-filter", "load", "--mode", "native", "--features", "ipv4", x.wire.B.Iface); err != nil {
		return err
	}
	x.loaded = true
	return eachLine(b.path, func(line []byte) error {
		if err := x.ctx.Err(); err != nil {
			return err
		}
		_, err := x.wire.run(nil, "xdp-filter", "ip", "--mode", "src", string(line))
		return err
	})
}

func (x *xdpfilter) enforce() error { return nil } // entries are active at once

// catch does nothing: xdp-filter passes unlisted packets to the stack, so it is
// measured with listed packets only.
func (x *xdpfilter) catch() error { return nil }

func (x *xdpfilter) received() (all, listed uint64, err error) {
	out, err := x.wire.run(nil, "xdp-filter", "status")
	if err != nil {
		return 0, 0, err
	}
	found := 0
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 3 || f[2] != "pkts" {
			continue
		}
		n, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("xdp-filter status: %q: %w", line, err)
		}
		all += n
		if f[0] == "XDP_DROP" {
			listed = n
		}
		found++
	}
	if found != 3 {
		return 0, 0, fmt.Errorf("xdp-filter status: %d counters, want 3", found)
	}
	return all, listed, nil
}

func (x *xdpfilter) Close() error {
	if !x.loaded {
		return nil
	}
	_, err := x.wire.run(nil, "xdp-filter", "unload", x.wire.B.Iface)
	return err
}
