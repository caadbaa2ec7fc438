package netns

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/control/config"
	"weir/control/feed"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/wait"
)

// poisons are contents that a feed may serve, and that must not become active.
func poisons(good string) []string {
	var shapes strings.Builder
	for n := range 40 {
		fmt.Fprintf(&shapes, "tcp 172.16.0.0/%d:* > 172.20.0.0/%d:80\n", 16+n%16, 14+n/16)
	}
	return []string{"<html>\n", good[:strings.IndexByte(good, '\n')+1], good + shapes.String(), "0.0.0.0/1\n", shapes.String(), ""}
}

// Everything changes at once: the interface is renamed and loses its carrier, feeds
// come and go, good and poisoned ones, entries are added and removed, and the
// configuration is read again. Not one listed packet comes through, of 100,000, or
// of a million with WEIR_LONG=1.
func TestChurnUnderLoad(t *testing.T) {
	packets := long.Or[uint64](100_000, 1_000_000)
	l := lab.New(t)
	link := func(name string, change func(netlink.Link) error) (err error) {
		l.B.In(t, func() {
			var i netlink.Link
			if i, err = netlink.LinkByName(name); err == nil {
				err = change(i)
			}
		})
		return err
	}
	rename := func(from, to string) error {
		return link(from, func(i netlink.Link) error { return netlink.LinkSetName(i, to) })
	}
	if err := link(l.B.Iface, netlink.LinkSetDown); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(rename(l.B.Iface, "wan0"), link("wan0", netlink.LinkSetUp)); err != nil {
		t.Fatal(err)
	}
	renamed := l.B
	renamed.Iface = "wan0"

	// Half of the listed sources are in a file, half in a feed.
	sources := addresses(0, 200)
	var mine, fetched strings.Builder
	for i, k := range sources {
		to := &mine
		if i%2 == 1 {
			to = &fetched
		}
		fmt.Fprintln(to, k)
	}
	var turns, otherTurns atomic.Int64
	bad := poisons(fetched.String())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		other := q.URL.Path == "/other"
		turn := &turns
		if other {
			turn = &otherTurns
		}
		n := int(turn.Add(1))
		switch {
		case n%2 == 0:
			fmt.Fprint(w, bad[n/2%len(bad)])
		case other:
			for i := range 100 + n%5000 {
				fmt.Fprintln(w, address(1_000_000+i+n))
			}
		default: // what is listed, and more or less besides
			fmt.Fprint(w, fetched.String())
			for i := range n % 50 {
				fmt.Fprintln(w, address(2_000_000+i+n))
			}
		}
	}))
	defer server.Close()

	c := configuration(t, netif.Target{Netns: l.B.Netns, Iface: "wan*"})
	addList(t, c, config.Block, "feed.txt", mine.String())
	for _, name := range []string{"fetched", "other"} {
		list := config.List{Name: name, Action: config.Block, Enforce: true}
		list.Spec = feed.DefaultSpec(feed.Source{URL: feed.URL(server.URL + "/" + name)})
		list.Sources[0].SetDefaults()
		c.Lists = append(c.Lists, list)
	}
	dir := c.Pins
	f := serve(t, c)
	attached, err := dir.Open(netif.Target{Netns: l.B.Netns, Iface: "wan0"})
	if err != nil {
		t.Fatal(err)
	}
	defer attached.Close()
	for deadline := wait.Deadline(); ; time.Sleep(10 * time.Millisecond) {
		if all := f.Lists().Lists; all[1].Entries >= len(sources)/2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not read: %+v", f.Lists())
		}
		_, _ = f.Refresh(t.Context(), "fetched", false)
	}

	load := startLoad(t, &lab.Lab{A: l.A, B: renamed}, sources)
	file := filepath.Dir(string(c.Lists[0].Sources[0].File)) + "/feed.txt"
	name, refused, accepted := "wan0", 0, 0
	for n := 0; load.sent.Load() < packets || n < 40; n++ { // at least each kind of change some times, however fast packets are
		outcomes, err := f.Refresh(t.Context(), []string{"fetched", "other"}[n%2], false)
		if err != nil {
			t.Fatal(err)
		}
		if outcomes[0].Outcome == api.Failed {
			refused++
		} else {
			accepted++
		}
		switch n % 5 {
		case 0:
			to := fmt.Sprintf("wan%d", n)
			if err := rename(name, to); errors.Is(err, unix.EBUSY) {
				t.Log("before Linux 6.2, interfaces that are up cannot be renamed")
			} else if err != nil {
				t.Fatal(err)
			} else {
				name = to
			}
		case 1:
			// The far end, so that the carrier goes: a veth that is itself taken down
			// delivers what is left of its queue without its program.
			var err error
			l.A.In(t, func() {
				var far netlink.Link
				if far, err = netlink.LinkByName(l.A.Iface); err == nil {
					err = errors.Join(netlink.LinkSetDown(far), netlink.LinkSetUp(far))
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		case 2:
			must.Write(t, file+".new", mine.String()+fmt.Sprintln(address(3_000_000+n)))
			if err := os.Rename(file+".new", file); err != nil { // noticed, or read below
				t.Fatal(err)
			}
		case 3:
			entry := address(4_000_000 + n).String()
			for _, remove := range []bool{false, true} {
				if _, err := f.Change(t.Context(), api.Change{Action: api.Block, Remove: remove, Entries: []string{entry}}); err != nil {
					t.Fatal(err)
				}
			}
		case 4:
			if _, err := f.Reload(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		load.await(t, packets/1000)
	}
	load.stop(t, attached)
	t.Logf("%d feeds were accepted, %d refused", accepted, refused)
	if accepted == 0 || refused == 0 {
		t.Error("too little happened")
	}
}
