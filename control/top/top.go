// Package top shows the traffic of a running weir on a terminal: the top
// talkers, the dropped packets by reason, and the state of the filter. A view
// lays out whole frames of text; bubbletea sends the changes to the terminal,
// and reads its keys.
package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"

	"weir/control/api"
)

// Options configure the view.
type Options struct {
	By       string        // a tracker, such as src, dst or flow, or ByReason; "" is the first one
	Interval time.Duration // between updates
	Host     string        // weir's host name; may be empty
	Colour   bool
	// Read requests the data.
	Read func(context.Context) (*api.Top, error)

	Rows Rows
}

// Rows answers questions about a row, by its entry in the format of lists. The
// methods return what to show.
type Rows interface {
	Explain(ctx context.Context, entry string) (string, error)
	Block(ctx context.Context, entry string) (string, error)
	Lift(ctx context.Context, entry string) (string, error)
}

// check fails if there is no tracker for what is to be shown.
func check(t *api.Top, by string) error {
	all := tabs(t)
	if by == "" || slices.ContainsFunc(all, func(tab string) bool { return answers(tab, by) }) {
		return nil
	}
	return fmt.Errorf("no tracker by %s, only %s", by, strings.Join(all, ", "))
}

// Page returns the view as plain text, in lines no wider than columns. by and
// host are the fields of Options.
func Page(t *api.Top, by, host string, columns int) (string, error) {
	t = together(t)
	if err := check(t, by); err != nil {
		return "", err
	}
	v := view{host: host, by: by, cursor: -1}
	var b strings.Builder
	for _, l := range v.page(t, columns) {
		b.WriteString(strings.TrimRight(l.text(), " ") + "\n")
	}
	return b.String(), nil
}

// together appends the sampled flows to the trackers, since both have the same tables.
func together(t *api.Top) *api.Top {
	all := *t
	all.Trackers, all.Sampled = t.All(), nil
	return &all
}

// Run shows the view on a terminal until q is pressed, ctx is done, or the
// terminal is closed. It fails if the first request does; later failures are
// shown and retried.
func Run(ctx context.Context, in, out *os.File, o Options) error {
	read := o.Read
	o.Read = func(ctx context.Context) (*api.Top, error) {
		t, err := read(ctx)
		if err != nil {
			return nil, err
		}
		return together(t), nil
	}
	now, err := o.Read(ctx)
	if err != nil {
		return err
	}
	if err := check(now, o.By); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the request in progress
	s := &session{
		Options: o, ctx: ctx, now: now,
		view: view{host: o.Host, by: o.By, every: o.Interval, live: true, cursor: -1},
	}
	s.see(now)
	// Set here because detection would run `tmux info` inside tmux.
	colours := colorprofile.ASCII
	if o.Colour {
		colours = colorprofile.ANSI
	}
	p := tea.NewProgram(s, tea.WithInput(keyboard{in}), tea.WithOutput(out),
		tea.WithColorProfile(colours), tea.WithFilter(sized), tea.WithoutSignalHandler())
	defer context.AfterFunc(ctx, p.Quit)()
	if _, err := p.Run(); err != nil {
		return fmt.Errorf("terminal %s: %w", in.Name(), err)
	}
	return nil
}

// keyboard is a terminal's input. Its end is an error: bubbletea would go on
// without keys and without a viewer.
type keyboard struct{ *os.File }

var errHungUp = errors.New("hung up")

func (k keyboard) Read(b []byte) (int, error) {
	n, err := k.File.Read(b)
	if err == io.EOF {
		err = errHungUp
	}
	return n, err
}

// sized sets a default size for a terminal of unknown size, such as a serial
// line.
func sized(_ tea.Model, msg tea.Msg) tea.Msg {
	if size, ok := msg.(tea.WindowSizeMsg); ok && (size.Width == 0 || size.Height == 0) {
		return tea.WindowSizeMsg{Width: 80, Height: 24}
	}
	return msg
}
