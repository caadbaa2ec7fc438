package netns

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/control/attach"
	"weir/control/config"
	"weir/filter/verdict"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/wait"
)

// Under load, an interface is renamed again and again within the names that are
// filtered: it keeps its program, not one listed packet gets through, and each is
// counted once.
func TestRenameUnderLoad(t *testing.T) {
	const renames = 16
	l := lab.New(t)
	rename := func(from, to string) {
		t.Helper()
		var err error
		l.B.In(t, func() {
			var i netlink.Link
			if i, err = netlink.LinkByName(from); err == nil {
				err = netlink.LinkSetName(i, to)
			}
		})
		if errors.Is(err, unix.EBUSY) {
			t.Skip("needs Linux 6.2, which renames interfaces that are up")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	sources := addresses(0, 100)
	var text strings.Builder
	for _, k := range sources {
		fmt.Fprintln(&text, k)
	}
	rename(l.B.Iface, "wan0")
	c := configuration(t, netif.Target{Netns: l.B.Netns, Iface: "wan*"})
	addList(t, c, config.Block, "feed.txt", text.String())
	dir := c.Pins
	f := serve(t, c)
	attached, err := dir.Open(netif.Target{Netns: l.B.Netns, Iface: "wan0"})
	if err != nil {
		t.Fatal(err)
	}
	defer attached.Close()
	id := attached.ProgramID()

	renamed := l.B // the sockets of the load are opened by the present name
	renamed.Iface = "wan0"
	load := startLoad(t, &lab.Lab{A: l.A, B: renamed}, sources)
	for n := range renames {
		to := fmt.Sprintf("wan%d", n+1)
		rename(fmt.Sprintf("wan%d", n), to)
		if n%4 == 3 { // also in quick succession
			continue
		}
		for deadline := wait.Deadline(); ; time.Sleep(10 * time.Millisecond) {
			all, err := attach.ReadStatus(dir)
			if err != nil || len(all) != 1 || all[0].Severed || all[0].ProgramID != id {
				t.Fatalf("as %s: %+v, %v; want program %d", to, all, err, id)
			}
			if all[0].Name == to {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("it is still known as %s, not %s", all[0].Name, to)
			}
		}
		load.await(t, 1000)
	}
	load.stop(t, attached)

	want := attached.Stats().Reasons(nil)[verdict.Blocked].Packets
	var blocked uint64
	for _, i := range f.Metrics().Interfaces {
		for _, c := range i.Counts {
			if c.Reason == verdict.Blocked.String() {
				blocked += c.Packets
			}
		}
	}
	if blocked != want {
		t.Errorf("%d blocked by the metrics, %d by the program", blocked, want)
	}
	var hits uint64
	for _, n := range f.Metrics().Hits {
		hits += n.Packets
	}
	if hits != want {
		t.Errorf("%d hits of lists by the metrics, %d blocked", hits, want)
	}
}
