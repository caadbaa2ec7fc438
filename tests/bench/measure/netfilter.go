package measure

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir/tests/bench/probe"
)

// run runs a tool at the receiving end of the wire, with the output of write as its
// standard input, and returns what it prints.
func (w *wire) run(write func(io.Writer) error, name string, args ...string) ([]byte, error) {
	var out, complaint bytes.Buffer
	var wrote error
	c := exec.Command(name, args...)
	c.Stdout, c.Stderr = &out, &complaint
	if write != nil {
		from, to := io.Pipe()
		c.Stdin = from
		go func() {
			b := bufio.NewWriterSize(to, 1<<16)
			if wrote = write(b); wrote == nil {
				wrote = b.Flush()
			}
			to.CloseWithError(wrote)
		}()
	}
	err := w.B.In(c.Run) // Run waits for the standard input to be written
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(complaint.Bytes()))
	}
	return out.Bytes(), err
}

// netfilter is the common part of contenders within the network stack.
type netfilter struct{ place }

// pass lets packets into the stack: a veth interface takes redirected frames only
// with a program, and one that passes all costs a few ns of many hundreds.
func (n netfilter) pass() error {
	p, err := probe.NewPassing()
	if err != nil {
		return err
	}
	defer p.Close() // the link keeps it
	return n.wire.attach(p)
}

func (n netfilter) Close() error { return nil } // its state goes with the wire

// eachLine calls fn with the lines of a file.
func eachLine(path string, fn func(line []byte) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if err := fn(lines.Bytes()); err != nil {
			return err
		}
	}
	return lines.Err()
}

// nft drops packets by a set of addresses or intervals in the ingress hook.
type nft struct{ netfilter }

func newNftables(p place) contender { return nft{netfilter{p}} }

func (n nft) prepare(b *blocklist) error {
	flags := ""
	if b.prefixes {
		flags = "flags interval; auto-merge;"
	}
	_, err := n.wire.run(func(w io.Writer) error {
		fmt.Fprintf(w, "table netdev bench {\n\tcounter listed {}\n\tcounter rest {}\n\tset listed { type ipv4_addr; %s }\n}\n", flags)
		e := elements{w: w}
		err := eachLine(b.path, func(line []byte) error { return e.add("add", line) })
		return e.end(err)
	}, "nft", "-f", "-")
	return err
}

// elements writes commands for the elements of a set, thousands per command.
type elements struct {
	w       io.Writer
	command string // under way
	n       int
}

func (e *elements) add(command string, element []byte) error {
	const most = 4096
	var err error
	switch {
	case e.command != command || e.n == most:
		if err = e.end(nil); err == nil {
			_, err = fmt.Fprintf(e.w, "%s element netdev bench listed { ", command)
		}
		e.command, e.n = command, 0
	default:
		_, err = io.WriteString(e.w, ",")
	}
	if err == nil {
		_, err = e.w.Write(element)
	}
	e.n++
	return err
}

// end ends the command, unless there was an error.
func (e *elements) end(err error) error {
	if err == nil && e.command != "" {
		_, err = io.WriteString(e.w, " }\n")
	}
	return err
}

func (n nft) chain(rules ...string) error {
	if err := n.pass(); err != nil {
		return err
	}
	_, err := n.wire.run(func(w io.Writer) error {
		fmt.Fprintf(w, "add chain netdev bench ingress { type filter hook ingress device %q priority 0; }\n", n.wire.B.Iface)
		fmt.Fprintln(w, "flush chain netdev bench ingress")
		for _, r := range rules {
			fmt.Fprintf(w, "add rule netdev bench ingress %s\n", r)
		}
		return nil
	}, "nft", "-f", "-")
	return err
}

const nftListed = "ip saddr @listed counter name listed drop"

func (n nft) enforce() error { return n.chain(nftListed) }
func (n nft) catch() error   { return n.chain(nftListed, "counter name rest drop") }

// received asks the kernel: nft would fetch the whole set to show a counter.
func (n nft) received() (all, listed uint64, err error) {
	var replies [][]byte
	err = n.wire.B.In(func() (err error) {
		req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETOBJ, unix.NLM_F_DUMP)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_NETDEV, Version: nl.NFNETLINK_V0})
		replies, err = req.Execute(unix.NETLINK_NETFILTER, 0)
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("get the counters of nftables: %w", err)
	}
	counters := make(map[string]uint64)
	for _, reply := range replies {
		name, packets, err := counter(reply[nl.SizeofNfgenmsg:])
		if err != nil {
			return 0, 0, fmt.Errorf("counters of nftables: %w", err)
		}
		counters[name] = packets
	}
	if len(counters) != 2 {
		return 0, 0, fmt.Errorf("counters of nftables: %v, want two", counters)
	}
	return counters["listed"] + counters["rest"], counters["listed"], nil
}

// counter reads a named counter from its attributes.
func counter(attributes []byte) (name string, packets uint64, err error) {
	outer, err := nl.ParseRouteAttr(attributes)
	if err != nil {
		return "", 0, err
	}
	for _, a := range outer {
		switch a.Attr.Type &^ unix.NLA_F_NESTED {
		case unix.NFTA_OBJ_NAME:
			name = unix.ByteSliceToString(a.Value)
		case unix.NFTA_OBJ_DATA:
			inner, err := nl.ParseRouteAttr(a.Value)
			if err != nil {
				return "", 0, err
			}
			for _, b := range inner {
				if b.Attr.Type&^unix.NLA_F_NESTED == unix.NFTA_COUNTER_PACKETS && len(b.Value) == 8 {
					packets = binary.BigEndian.Uint64(b.Value)
				}
			}
		}
	}
	return name, packets, nil
}

func (n nft) update(add, remove []uint32) error {
	_, err := n.wire.run(func(w io.Writer) error {
		e := elements{w: w}
		var line []byte
		for command, addrs := range map[string][]uint32{"add": add, "delete": remove} {
			for _, a := range addrs {
				line = appendEntry(line[:0], single(a))
				if err := e.add(command, line); err != nil {
					return err
				}
			}
		}
		return e.end(nil)
	}, "nft", "-f", "-")
	return err
}

// ipsets drops packets by a set of addresses or networks in the raw table.
type ipsets struct{ netfilter }

func newIPSet(p place) contender { return ipsets{netfilter{p}} }

func (n ipsets) prepare(b *blocklist) error {
	sort := "hash:ip"
	if b.prefixes {
		sort = "hash:net"
	}
	_, err := n.wire.run(func(w io.Writer) error {
		// The manual recommends the final size from the start, for speed.
		fmt.Fprintf(w, "create listed %s hashsize %d maxelem %d\n", sort, b.n(), b.n()+mostChanges)
		return eachLine(b.path, func(line []byte) error {
			_, err := fmt.Fprintf(w, "add listed %s\n", line)
			return err
		})
	}, "ipset", "-exist", "restore")
	return err
}

func (n ipsets) rules(rest bool) error {
	if err := n.pass(); err != nil {
		return err
	}
	_, err := n.wire.run(func(w io.Writer) error {
		fmt.Fprintln(w, "*raw\n-A PREROUTING -m set --match-set listed src -j DROP")
		if rest {
			fmt.Fprintln(w, "-A PREROUTING -j DROP")
		}
		_, err := fmt.Fprintln(w, "COMMIT")
		return err
	}, "iptables-restore")
	return err
}

func (n ipsets) enforce() error { return n.rules(false) }
func (n ipsets) catch() error   { return n.rules(true) }

func (n ipsets) received() (all, listed uint64, err error) {
	out, err := n.wire.run(nil, "iptables", "-t", "raw", "-nvxL", "PREROUTING")
	if err != nil {
		return 0, 0, err
	}
	var counters []uint64
	for line := range strings.Lines(string(out)) {
		// The rules follow two lines of headings and begin with their packets.
		if f := strings.Fields(line); len(f) > 2 && f[2] == "DROP" {
			packets, err := strconv.ParseUint(f[0], 10, 64)
			if err != nil {
				return 0, 0, fmt.Errorf("iptables -nvxL: %q: %w", line, err)
			}
			counters = append(counters, packets)
		}
	}
	if len(counters) != 2 {
		return 0, 0, fmt.Errorf("iptables -nvxL: %d rules, want 2:\n%s", len(counters), out)
	}
	return counters[0] + counters[1], counters[0], nil
}

func (n ipsets) update(add, remove []uint32) error {
	_, err := n.wire.run(func(w io.Writer) error {
		for command, addrs := range map[string][]uint32{"add": add, "del": remove} {
			for _, a := range addrs {
				if _, err := fmt.Fprintf(w, "%s listed %s\n", command, appendEntry(nil, single(a))); err != nil {
					return err
				}
			}
		}
		return nil
	}, "ipset", "restore")
	return err
}
