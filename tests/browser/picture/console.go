package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"weir/control/demo/playground"
)

// consoleAddress is in the namespace of the daemon.
const consoleAddress = "127.0.0.1:9479"

// The size of the console's picture.
const (
	consoleWidth  = 1200
	consoleHeight = 1090
)

// page is a browser that shows the console.
type page struct {
	tab   context.Context
	close func()
}

// openConsole opens the console of the daemon in a namespace.
func openConsole(ctx context.Context, binary, socket string, in playground.End) (_ *page, err error) {
	out, err := exec.Command(binary, "console", "--json", "--socket", socket).Output()
	var opened struct{ URL string }
	if err == nil {
		err = json.Unmarshal(out, &opened)
	}
	if err != nil {
		return nil, fmt.Errorf("weir console: %w", err)
	}
	at, err := url.Parse(opened.URL)
	if err != nil {
		return nil, err
	}
	l, err := forward(in)
	if err != nil {
		return nil, err
	}
	at.Host = l.Addr().String()
	allocator, endBrowser := chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.Flag("hide-scrollbars", true))...)
	tab, endTab := chromedp.NewContext(allocator)
	p := &page{tab, func() { endTab(); endBrowser(); l.Close() }}
	err = chromedp.Do(tab, chromedp.EmulateViewport(consoleWidth, consoleHeight), chromedp.Navigate("about:blank"))
	if err == nil {
		_, err = chromedp.Call(tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}},
		})
	}
	if err == nil {
		err = chromedp.Do(tab, chromedp.Navigate(at.String()), chromedp.WaitVisible(chromedp.CSS("#main")))
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("chromium: %w", err)
	}
	return p, nil
}

// forward listens here for connections to the console in another namespace.
func forward(in playground.End) (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				var to net.Conn
				if in.In(func() (err error) { to, err = net.Dial("tcp", consoleAddress); return err }) != nil {
					return
				}
				defer to.Close()
				go func() { _, _ = io.Copy(to, from); to.Close() }()
				_, _ = io.Copy(from, to)
			}()
		}
	}()
	return l, nil
}

// ask asks what becomes of packets.
func (p *page) ask(packets string) error {
	return chromedp.Do(p.tab, chromedp.SendKeys(chromedp.CSS("#q"), packets+kb.Enter), chromedp.WaitVisible(chromedp.CSS("#answer .verdict")), chromedp.Evaluate[chromedp.Void]("scrollTo(0, 0); document.activeElement.blur()"))
}

// draw writes what the page shows to a file.
func (p *page) draw(file string) error {
	text, err := chromedp.Run(p.tab, chromedp.CaptureScreenshot())
	if err != nil {
		return err
	}
	if text, err = reduced(text); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// reduced returns a picture with its 256 most frequent colours, at less than half the
// size.
func reduced(text []byte) ([]byte, error) {
	from, err := png.Decode(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	counts := make(map[color.RGBA]int)
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(from.At(x, y)).(color.RGBA) }
	b := from.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			counts[at(x, y)]++
		}
	}
	var colours color.Palette
	for c := range counts {
		colours = append(colours, c)
	}
	slices.SortFunc(colours, func(a, b color.Color) int { return counts[b.(color.RGBA)] - counts[a.(color.RGBA)] })
	to := image.NewPaletted(b, colours[:min(len(colours), 256)])
	nearest := make(map[color.RGBA]uint8)
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			c := at(x, y)
			n, ok := nearest[c]
			if !ok {
				n = uint8(to.Palette.Index(c))
				nearest[c] = n
			}
			to.SetColorIndex(x, y, n)
		}
	}
	var out bytes.Buffer
	e := png.Encoder{CompressionLevel: png.BestCompression}
	err = e.Encode(&out, to)
	return out.Bytes(), err
}
