package daemon

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/wait"
)

// Where networks that send are not those that are listed, the daemon builds a filter with more bits for
// them. What is listed stays blocked.
func TestReplan(t *testing.T) {
	replanInterval = 100 * time.Millisecond
	t.Cleanup(func() { replanInterval = time.Minute })
	const listed = 20_000
	address := func(network, i int) netip.Addr {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(network<<16+i))))
	}
	l := lab.New(t)
	file := filepath.Join(t.TempDir(), "list")
	var text strings.Builder
	for i := range listed {
		fmt.Fprintln(&text, address(0x0b00+i%20, i/20))
	}
	write(t, file, text.String())
	d := startLists(t, l, io.Discard, fmt.Sprintf("mode: approx\nbits_per_entry: 6\nlists: {feed: {sources: [{file: %s}], interval: 24h}}", file))
	tx := l.A.Sender(t)
	first := d.active.attach.Metadata().Loaded
	send := func(src netip.Addr) {
		if err := tx.Send(packet.Frame(key.Tuple{Src: src, Dst: netip.MustParseAddr("192.0.2.1"), Proto: 17})); err != nil {
			t.Fatal(err)
		}
	}
	sent := 0
	wait.For(t, "another engine is built", func() bool {
		for range 1000 { // each of another source
			send(address(0x2d00+sent%20, sent/20))
			sent++
		}
		w := d.readings.weights.Load()
		return w != nil && len(w.Networks) > 0
	})
	w := d.readings.weights.Load()
	t.Logf("after %d sources: %+v; %.3g mistaken, equal %.3g", sent, w.Networks, w.Uniform, w.Equal)
	if w.Uniform > w.Equal/worthAnEngine {
		t.Errorf("%.3g of unlisted packets are predicted to be dropped, %.3g if all had the same number of bits", w.Uniform, w.Equal)
	}
	if !d.active.attach.Metadata().Loaded.After(first) {
		t.Error("the engine is the first one")
	}
	blocked := func() (n uint64) {
		if err := d.loop.Do(t.Context(), func() error {
			reasons, _ := d.observers.meter.Counters()
			n = reasons[verdict.Blocked].Packets
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := blocked()
	for i := range listed {
		send(address(0x0b00+i%20, i/20))
	}
	wait.For(t, "what is listed is dropped", func() bool { return blocked() == before+listed })
}
