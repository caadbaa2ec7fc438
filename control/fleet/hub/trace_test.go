package hub

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/fleet/wire"
	"weir/filter/attenuated"
	"weir/filter/bloom"
	"weir/filter/compress"
	"weir/filter/digest"
	"weir/filter/hash"
	"weir/tests/long"
)

// datagram returns a packet of IPv4 with a number.
func datagram(number uint32) []byte {
	p := []byte{0x45, 0, 0, 28, 0, 1, 0, 0, 60, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1, 0, 5, 0, 9, 0, 8, 0, 0}
	binary.BigEndian.PutUint32(p[12:], number)
	return p
}

// TestTraceCost traces packets through twenty nodes with 100,000 other packets in each
// slice, by asking all of them, and compares what that costs with summaries that would
// say whom to ask: one of each node's slice at the hub, and attenuated filters, one for
// each link, with all that is reached over it in up to three hops.
func TestTraceCost(t *testing.T) {
	long.Seconds(t)
	const (
		nodes  = 20
		others = 100_000 // packets a second, and in a slice
		traced = 10
		onPath = 5
		hops   = 3
		degree = 3 // neighbours that a hop leads on to
	)
	f := newFleet(t)
	f.start("")
	began := time.Now().Truncate(time.Second)
	c := digest.Config{Rate: others, Slice: time.Second, FPR: 0.01, Keep: time.Second}
	var names []string
	var asked api.TraceQuestion
	for i := range traced {
		asked.Packets = append(asked.Packets, api.TraceAbout{Data: datagram(uint32(i)), From: began, To: began.Add(time.Second - 1)})
	}
	for i := range nodes {
		log, err := digest.NewLog(c)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(uint64(i), 1))
		secret := hash.NewSecret(hash.NewSeed())
		for range others {
			log.Record(r.Uint64(), began)
		}
		for _, p := range asked.Packets {
			if sum, err := digest.Sum(secret, p.Data); err != nil {
				t.Fatal(err)
			} else if i < onPath {
				log.Record(sum, began)
			}
		}
		names = append(names, fmt.Sprintf("edge-%02d", i))
		f.answerer(names[i], func(_ context.Context, what string, question []byte) (any, error) {
			var q api.TraceQuestion
			if err := json.Unmarshal(question, &q); err != nil || what != wire.AskTrace {
				return nil, fmt.Errorf("asked for %s", what)
			}
			in := api.TracedInterface{Name: "eth0", Since: &began}
			for _, p := range q.Packets {
				sum, err := digest.Sum(secret, p.Data)
				if err != nil {
					return nil, err
				}
				found := api.TracedPacket{Slices: []api.TracedSlice{}}
				matches, chance := log.Query(sum, p.From, p.To)
				for _, m := range matches {
					found.Slices = append(found.Slices, api.TracedSlice{Start: m.Start, Length: m.Length.Seconds(), Chance: m.Chance})
				}
				found.Chance = chance
				in.Packets = append(in.Packets, found)
			}
			return api.Traced{Host: "edge", Interfaces: []api.TracedInterface{in}}, nil
		})
	}
	f.connected(names...)
	before := f.hub.asker.connection().Stats()
	seen, err := f.hub.Trace(t.Context(), nil, asked)
	if err != nil {
		t.Fatal(err)
	}
	after := f.hub.asker.connection().Stats()
	positive := 0 // packets at nodes where they have not passed
	for i, n := range seen.Nodes {
		if n.Traced == nil {
			t.Fatalf("%s: %s", n.Node, n.Problem)
		}
		for _, p := range n.Traced.Interfaces[0].Packets {
			switch {
			case i < onPath && len(p.Slices) == 0:
				t.Errorf("%s has not seen a packet", n.Node)
			case i >= onPath && len(p.Slices) > 0:
				positive++
			}
		}
	}
	perNode := float64(after.OutBytes-before.OutBytes+after.InBytes-before.InBytes) / nodes

	// The summary of a slice that is cheapest to send, and filters of the nodes behind a
	// link, sized for those three hops away.
	plan, err := compress.Optimal(others, 7*others, 1<<24)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	summary := bloom.New(plan.Geometry, 1)
	for range others {
		summary.AddHash(r.Uint64())
	}
	slice := len(compress.Encode(summary))
	link := 0
	reached := others
	largest, err := bloom.Standard(plan.Geometry.M()*degree*degree, plan.Geometry.K())
	if err != nil {
		t.Fatal(err)
	}
	behind := attenuated.New(largest, 1, hops)
	for d := 1; d <= hops; d++ {
		for range reached {
			behind.Level(d).AddHash(r.Uint64())
		}
		link += len(compress.Encode(behind.Level(d)))
		reached *= degree
	}
	t.Logf("asking all: %.0f bytes a node for %d packets, %d of %d answers by chance", perNode, traced, positive, traced*(nodes-onPath))
	t.Logf("a summary: %d bytes a second and node, false-positive rate %.2f %%; attenuated filters: %d bytes a second and link",
		slice, 100*plan.Rate, link)
	t.Logf("a summary costs as much as asking a node %.0f times a second, a link's filters as %.0f times", float64(slice)/perNode, float64(link)/perNode)
	if perNode > 4000 || float64(slice) < 10*perNode || link < slice {
		t.Error("asking all nodes is no longer cheaper: let summaries say whom to ask")
	}
}
