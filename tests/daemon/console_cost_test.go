package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/netip"
	"regexp"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/timed"
)

// flood sends the frames by turns, at a rate in packets a second or, with 0, as fast as a
// CPU can, until the context is done. It stores how much CPU time that has taken, in
// nanoseconds, reception included: the time in which the machine did other things is not in
// it.
func flood(ctx context.Context, from lab.End, frames [][]byte, rate int, used *atomic.Int64) error {
	return from.Do(func() error {
		index, err := net.InterfaceByName(from.Iface)
		if err != nil {
			return err
		}
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Dual BSD/GPL", Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R1, int32(index.Index)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return(),
		}})
		if err != nil {
			return err
		}
		defer p.Close()
		const burst = 1 << 15 // each call takes milliseconds more
		began := time.Now()
		for sent := 0; ctx.Err() == nil; sent += burst {
			if early := time.Duration(float64(sent) / float64(max(rate, 1)) * float64(time.Second)); rate > 0 {
				time.Sleep(early - time.Since(began))
			}
			if _, err := p.Run(&ebpf.RunOptions{Data: frames[sent/burst%len(frames)], Repeat: burst, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES}); err != nil {
				return err
			}
			var cpu unix.Timespec
			if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &cpu); err != nil {
				return err
			}
			used.Store(cpu.Nano())
		}
		return nil
	})
}

// A page that is open takes at most 2 % of a core at 500,000 packets a second, and changes
// the rate of the wire by at most 1 %.
func TestConsoleCost(t *testing.T) {
	long.Only(t, "measures for half a minute")
	timed.Alone(t)
	if !lab.KernelAtLeast(t, 5, 18) {
		t.Skip("sends frames from the kernel, which Linux 5.18 and later do")
	}
	h := newHost(t)
	h.write("feed.txt", []byte("198.51.100.0/28\n"))
	free, err := net.Listen("tcp", "127.99.97.4:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	h.configure(h.B.Iface, "console: {listen: %q}\nlists: {feed: {sources: [{file: %s}]}}\ntrackers: [{key: src, threshold: 20kpps}]\n", free.Addr(), h.path("feed.txt"))
	d := h.start(releases[0])
	opened, err := h.api.OpenConsole(t.Context(), api.ConsoleRequest{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	jar, _ := cookiejar.New(nil)
	browser := http.Client{Jar: jar}
	r, err := browser.Get(opened.URL)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	live := "http://" + free.Addr().String() + regexp.MustCompile(`content="0;url=([^"]+)"`).FindStringSubmatch(string(text))[1] + "live"

	var frames [][]byte
	for i := range 64 {
		f := packet.Frame(key.Tuple{Src: netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), Dst: h.B.IPv4, Proto: 17, HasPorts: true, SrcPort: 1000, DstPort: 2000})
		frames = append(frames, append(f, make([]byte, 20)...)) // to a MAC address that is no one's, so that the stack drops it
	}
	var sending atomic.Int64
	// measure returns the daemon's CPU time in a second, and the packets in a second of the
	// sender's.
	measure := func(during time.Duration) (cpu, rate float64) {
		t.Helper()
		at := func() (time.Time, time.Duration, float64, float64) {
			s, err := h.api.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var used unix.Timespec
			if err := unix.ClockGettime(int32(^d.process.Pid<<3|2), &used); err != nil { // its CPU-time clock
				t.Fatal(err)
			}
			return time.Now(), time.Duration(used.Nano()), float64(s.Interfaces[0].Packets), time.Duration(sending.Load()).Seconds()
		}
		t0, used0, n0, sending0 := at()
		time.Sleep(during)
		t1, used1, n1, sending1 := at()
		return (used1 - used0).Seconds() / t1.Sub(t0).Seconds(), (n1 - n0) / (sending1 - sending0)
	}
	run := func(rate int) (more, ratios []float64) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		flooded := make(chan error, 1)
		go func() { flooded <- flood(ctx, h.A, frames, rate, &sending) }()
		defer func() {
			cancel()
			if err := <-flooded; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
		time.Sleep(2 * time.Second)
		const pairs, during = 7, time.Second
		var rates []float64
		for range pairs {
			closed, without := measure(during)
			page, end := context.WithCancel(ctx)
			q, err := http.NewRequestWithContext(page, http.MethodGet, live, nil)
			if err != nil {
				t.Fatal(err)
			}
			r, err := browser.Do(q)
			if err != nil || r.StatusCode != http.StatusOK {
				t.Fatal(r, err)
			}
			read := make(chan int64, 1)
			go func() { n, _ := io.Copy(io.Discard, r.Body); read <- n }() // ends with an error
			open, with := measure(during)
			end()
			r.Body.Close()
			if n := <-read; n < 1000 {
				t.Fatalf("the page got %d bytes", n)
			}
			more, ratios, rates = append(more, open-closed), append(ratios, with/without), append(rates, without)
		}
		slices.Sort(more)
		slices.Sort(ratios)
		slices.Sort(rates)
		t.Logf("at %.0f packets a second of CPU, %d pairs: CPU %.4f more, ratios of the rate %.4f", rates[pairs/2], pairs, more, ratios)
		return more, ratios
	}
	// Of seven, the first and the last have the median between them with a probability of 98 %.
	const low, middle, high = 0, 3, 6
	more, _ := run(500_000)
	if cpu := more[low]; cpu > 0.02 {
		t.Errorf("a page takes %.1f %% of a core", 100*cpu)
	}
	t.Logf("a page takes %.2f %% of a core", 100*more[middle])
	// The bar is 1 %, which only an idle machine can show.
	_, ratios := run(0)
	t.Logf("a page changes the rate of the wire by %.2f to %.2f %%", 100*(ratios[low]-1), 100*(ratios[high]-1))
	if ratios[high] < 0.95 {
		t.Errorf("a page changes the rate of the wire by %.2f %%", 100*(ratios[middle]-1))
	}
}
