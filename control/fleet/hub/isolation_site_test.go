package hub

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/config"
	"weir/control/fleet/broker"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
	"weir/tests/lab"
	"weir/tests/wait"
)

// site starts the server of a site. The function ends it.
func (f *fleet) site(e enrollment.Site, dir, listen string, log *slog.Logger) (*broker.Site, func()) {
	f.t.Helper()
	s, err := broker.StartSite(broker.SiteOptions{Enrollment: e, Dir: dir, Listen: listen, Log: log})
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	stop := sync.OnceFunc(func() { cancel(); running.Wait(); s.Close() })
	f.t.Cleanup(stop)
	return s, stop
}

// A site's server answers what its nodes fetch, also without the hub. A node of the site cannot have
// it sent to others, and the site's log names it.
func TestFetchAtSite(t *testing.T) {
	t.Parallel() // it waits a lot
	f, hubLog := logged(t)
	f.sites = lab.FreeAddress(t)
	f.start("")
	listen := lab.FreeAddress(t)
	e, err := f.authority.EnrollSite("paris", []string{"tls://" + listen}, []string{"tls://" + f.sites})
	if err != nil {
		t.Fatal(err)
	}
	log := &lines{}
	f.site(e, t.TempDir(), listen, slog.New(slog.NewTextHandler(log, nil)))
	f.change(block("192.0.2.1"))
	n, err := f.authority.Enroll("edge-1", nil, []string{"tls://" + listen})
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.connect(n)
	if err != nil {
		t.Fatal(err)
	}
	on := wire.NodeFetchSubject("edge-1")
	answers := make(chan *nats.Msg, 100)
	inbox := wire.NodeInbox("edge-1") + "test"
	if _, err := c.ChanSubscribe(inbox, answers); err != nil {
		t.Fatal(err)
	}
	fetched := func() {
		t.Helper()
		for _, subject := range []string{wire.CatalogSubject(), wire.DeltaSubject(config.FleetBlock)} {
			question := fmt.Appendf(nil, `{"last_by_subj":%q}`, subject)
			wait.Until(t, func() error {
				m, err := c.Request(on, question, time.Second)
				if err == nil && m.Header.Get("Nats-Subject") != subject {
					err = fmt.Errorf("on %s: %v", on, m.Header)
				}
				return err
			})
			// One answer: not of the site and the hub.
			if err := c.PublishRequest(on, inbox, question); err != nil {
				t.Fatal(err)
			}
			<-answers
			select {
			case m := <-answers:
				t.Errorf("a second answer on %s: %v", on, m.Header)
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	fetched()
	good, bad := f.watch("direct"), c
	for _, reply := range []string{wire.DownPrefix + wire.DeltaSubject(config.FleetBlock), wire.NodeInbox("direct") + "x", wire.StatusSubject("direct"), wire.AskSubject("direct", "explain")} {
		if err := bad.PublishRequest(on, reply, fmt.Appendf(nil, `{"last_by_subj":%q}`, wire.CatalogSubject())); err != nil {
			t.Fatal(err)
		}
	}
	wait.Until(t, func() error {
		if all := log.of("tries what it may not do"); len(all) == 0 || !strings.Contains(all[0], "node=edge-1") {
			return fmt.Errorf("the site's log: %q", all)
		}
		return nil
	})
	f.change(block("192.0.2.2")) // after all that
	if n := good.messages.Load(); n > 0 {
		t.Errorf("%d messages came to a node of the hub", n)
	}
	if all := hubLog.of("Violation"); len(all) > 0 {
		t.Errorf("the hub's log: %q", all)
	}
	f.stop()
	fetched()
}
