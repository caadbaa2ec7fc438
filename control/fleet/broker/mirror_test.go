package broker

import (
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/control/fleet/authority"
	"weir/control/fleet/wire"
	"weir/tests/wait"
)

// hubWithStream returns the connection of a hub that has made its stream.
func hubWithStream(t *testing.T, a *authority.Authority, b *Server) jetstream.JetStream {
	t.Helper()
	token, seed, err := a.OwnStream()
	if err != nil {
		t.Fatal(err)
	}
	c, err := connect(t, "", append(b.Options(), nats.UserJWTAndSeed(token, seed))...)
	if err != nil {
		t.Fatal(err)
	}
	hub, err := jetstream.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hub.CreateStream(t.Context(), jetstream.StreamConfig{Name: wire.Stream, Subjects: wire.StreamSubjects, AllowDirect: true, AllowRollup: true}); err != nil {
		t.Fatal(err)
	}
	return hub
}

// A mirror keeps the last catalog only.
func TestMirrorKeepsLast(t *testing.T) {
	a, b := start(t)
	hub := hubWithStream(t, a, b)
	publish := func(n int) {
		t.Helper()
		for range n {
			m := nats.NewMsg(wire.CatalogSubject())
			m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
			if _, err := hub.PublishMsg(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	site := paris(t, a, b)
	wait.For(t, "the mirror is made", func() bool { // which may fail while the server starts
		_, err := site.js.CreateStream(t.Context(), site.mirrorConfig())
		return err == nil
	})
	has := func() jetstream.StreamState {
		stream, err := site.js.Stream(t.Context(), wire.Stream)
		if err != nil {
			t.Fatal(err)
		}
		return stream.CachedInfo().State
	}
	var w watch
	wait.For(t, "the mirror follows", func() bool { publish(1); return has().LastSeq > 0 })
	before := has().LastSeq
	publish(20)
	wait.For(t, "the mirror follows", func() bool { site.look(t.Context(), &w); return has().LastSeq >= before+20 })
	wait.For(t, "one catalog is left", func() bool { site.look(t.Context(), &w); return has().Msgs == 1 })
}

// A mirror is made once the site is connected, and anew as long as it has not heard of the hub.
func TestMirrorThatHearsNothing(t *testing.T) {
	a, b := start(t)
	site := paris(t, a, b)
	var w watch
	look := func() (of jetstream.StreamInfo) {
		site.look(t.Context(), &w)
		if stream, err := site.js.Stream(t.Context(), wire.Stream); err == nil {
			of = *stream.CachedInfo()
		}
		return of
	}
	var first jetstream.StreamInfo
	wait.For(t, "the mirror is made", func() bool { first = look(); return !first.Created.IsZero() })
	if !site.Connected() {
		t.Error("it was made without a connection")
	}
	// The hub has no stream yet.
	wait.For(t, "it is made anew", func() bool { return look().Created.After(first.Created) })
	if w.mirror.pause != 2*unheardLong {
		t.Errorf("the next pause is %v", w.mirror.pause)
	}
	hub := hubWithStream(t, a, b)
	if _, err := hub.Publish(t.Context(), wire.CatalogSubject(), nil); err != nil {
		t.Fatal(err)
	}
	var follows jetstream.StreamInfo
	wait.For(t, "the mirror follows", func() bool { follows = look(); return follows.State.Msgs > 0 })
	w.mirror.asked = time.Now().Add(-time.Hour)
	look()
	if now := look(); !now.Created.Equal(follows.Created) {
		t.Errorf("made anew at %v, though it follows", now.Created)
	}
}

// Which stream a mirror is of is saved as soon as it can be. Until then the mirror is not made anew
// again and again.
func TestMirrorThatCannotBeNoted(t *testing.T) {
	a, b := start(t)
	site := paris(t, a, b)
	if err := site.mirror(t.Context()); err != nil {
		t.Fatal(err)
	}
	blocked := site.mirroredPath() + ".new"
	if err := os.Mkdir(blocked, 0o700); err != nil {
		t.Fatal(err)
	}
	site.mirrored, site.stream = "before", "now"
	made := func() time.Time {
		stream, err := site.js.Stream(t.Context(), wire.Stream)
		if err != nil {
			t.Fatal(err)
		}
		return stream.CachedInfo().Created
	}
	var at progress
	former := made()
	if err := site.follow(t.Context(), &at); err == nil {
		t.Error("the site says that it has noted the stream")
	}
	wait.For(t, "the mirror is made anew", func() bool { // nats-server may refuse at first: it is still deleting
		if _, err := site.js.Stream(t.Context(), wire.Stream); err == nil {
			return true
		}
		if err := site.follow(t.Context(), &at); err == nil {
			t.Error("the site says that it has noted the stream")
		}
		return false
	})
	once := made()
	if once.Equal(former) {
		t.Error("the mirror was not made anew")
	}
	if err := site.follow(t.Context(), &at); err == nil || !made().Equal(once) {
		t.Errorf("made anew, %v", err)
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	if err := site.follow(t.Context(), &at); err != nil {
		t.Error(err)
	}
	if noted, err := os.ReadFile(site.mirroredPath()); err != nil || string(noted) != "now" {
		t.Errorf("noted %q: %v", noted, err)
	}
}
