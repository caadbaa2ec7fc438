package hub

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/control/config"
	"weir/control/fleet/wire"
	"weir/tests/wait"
)

// A node that has what it fetches sent to other subjects than its own changes nothing in the
// stream, speaks for no other node, and is named.
func TestReplySubjects(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	_, bad := f.enroll("bad")
	n, good := f.enroll("good")
	f.change(block("198.18.7.1"))
	place := f.change(block("198.18.7.2")).Version
	own := f.inStream()
	js, err := jetstream.New(own)
	if err != nil {
		t.Fatal(err)
	}
	stored := func() string { // but for the catalog, which is published anew all the time
		t.Helper()
		s, err := js.Stream(t.Context(), wire.Stream)
		if err != nil {
			t.Fatal(err)
		}
		i, err := s.Info(t.Context(), jetstream.WithSubjectFilter(">"))
		if err != nil {
			t.Fatal(err)
		}
		last, err := s.GetLastMsgForSubject(t.Context(), wire.CatalogSubject())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wire.OpenCatalog(n.PublicKey, last.Data); err != nil {
			t.Error(err)
		}
		return fmt.Sprint(i.Created, i.State.Subjects)
	}
	report := func(version string) error {
		if err := good.Publish(wire.StatusSubject("good"), status(t, wire.Status{Version: version})); err != nil {
			t.Fatal(err)
		}
		s, err := f.hub.Fleet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range s.Nodes {
			if n.Name == "good" && n.Report != nil && n.Report.Version == version && n.Ignored == 0 {
				return nil
			}
		}
		return fmt.Errorf("the report of node good was not taken: %+v", s.Nodes)
	}
	wait.Until(t, func() error { return report("1") })

	before := stored()
	for _, subject := range []string{
		wire.CatalogSubject(), wire.HeadSubject(config.FleetBlock), wire.DeltaSubject(config.FleetBlock), wire.ChunkSubject(config.FleetBlock, place.Epoch, 1, 0),
		wire.StatusSubject("good"), "weir.v1.up.stranger.status",
		"$JS.API.STREAM.PURGE." + wire.Stream, "$JS.API.STREAM.DELETE." + wire.Stream, "$JS.API.STREAM.UPDATE." + wire.Stream, "$JS.API.CONSUMER.CREATE." + wire.Stream,
		"$JS.hub.API.STREAM.PURGE." + wire.Stream, "$JS.hub.API.STREAM.DELETE." + wire.Stream, "$SYS.REQ.SERVER.PING",
	} {
		for _, body := range []string{`{"seq":1}`, `{"last_by_subj":"` + wire.CatalogSubject() + `"}`, `{"last_by_subj":"none"}`, `{`, ``} {
			for range wire.ReportBurst {
				// It may have been cut off, since it persists.
				if err := bad.PublishRequest(wire.NodeFetchSubject("bad"), subject, []byte(body)); err != nil && !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrReconnectBufExceeded) {
					t.Fatal(err)
				}
			}
		}
	}
	_ = bad.Flush() // it may have been cut off
	for _, c := range []*nats.Conn{good, own} {
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(300 * time.Millisecond) // for what the broker has in its queues
	if after := stored(); after != before {
		t.Errorf("the stream had %s, and has %s", before, after)
	}
	wait.Until(t, func() error { return report("2") })
	if changed := f.change(block("198.18.7.3")); !changed.Published {
		t.Errorf("%+v", changed)
	}
	if s, _, _, err := f.follower(n, good).read(config.FleetBlock); err != nil || wantEntries(s, "198.18.7.1", "198.18.7.2", "198.18.7.3") != nil {
		t.Errorf("%v, %v", s, err)
	}
	wait.Until(t, func() error {
		s, err := f.hub.Fleet(t.Context())
		if err == nil && (len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "node bad ") || s.Ignored > 0) {
			err = fmt.Errorf("problems %q, %d ignored", s.Problems, s.Ignored)
		}
		return err
	})
}
