package top

import (
	"context"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/sys/unix"

	"weir/control/api"
)

// session is a view on a terminal, as bubbletea runs it.
type session struct {
	Options
	view
	ctx            context.Context // of requests to weir
	now            *api.Top        // the data shown
	columns, lines int             // of the terminal; 0 until it is known
	due            tick            // the expected one
	asking         bool            // a request is in progress
	onYes          tea.Cmd         // what the question asks for
}

// result is the answer to a key: lines to read, or one for the footer.
type result struct {
	text string
	page bool
}

// tick is the end of an interval. Its number distinguishes it from one of an
// earlier interval.
type tick int

// answer is weir's answer.
type answer struct {
	top *api.Top
	err error
}

func (s *session) Init() tea.Cmd { return s.wait() }

func (s *session) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		s.columns, s.lines = msg.Width, msg.Height
	case tea.KeyPressMsg:
		return s, s.press(msg.String())
	case tick:
		if msg == s.due {
			return s, tea.Batch(s.wait(), s.ask())
		}
	case answer:
		s.asking = false
		s.take(msg)
	case result:
		if s.note = msg.text; msg.page {
			s.note, s.read = "", []line{}
			for text := range strings.Lines(msg.text) {
				s.read = append(s.read, say(plain, " "+strings.TrimRight(text, "\n")))
			}
		}
	}
	return s, nil
}

func (s *session) View() tea.View {
	var painted []string
	for _, l := range s.screen(s.now, s.columns, s.lines) {
		painted = append(painted, l.paint())
	}
	v := tea.NewView(strings.Join(painted, "\n"))
	v.AltScreen = true // keeps the terminal's contents
	return v
}

// press handles a key.
func (s *session) press(key string) tea.Cmd {
	before := s.view
	s.note = ""
	switch {
	case key == "ctrl+c", key == "ctrl+z", key == "ctrl+l":
	case s.asks != "":
		yes := s.onYes
		s.asks, s.onYes = "", nil
		if key == "y" {
			return yes
		}
		s.note = "nothing has changed"
		return nil
	case s.typing:
		s.typed(key)
		return nil
	case s.read != nil:
		s.read = nil
		return nil
	}
	switch key {
	case "enter", "b", "u":
		return s.act(key)
	case "q", "ctrl+c":
		return tea.Quit
	case "ctrl+z":
		if stoppable() {
			return tea.Suspend
		}
	case "ctrl+l":
		return tea.ClearScreen
	default:
		s.view.press(key, s.now)
	}
	switch {
	case s.every != before.every:
		return s.wait()
	case before.paused:
		return s.ask() // unless paused
	}
	return nil
}

// stoppable reports whether there is a shell that could continue the process:
// there is none if its group leads the session, as under ssh -t.
func stoppable() bool {
	leader, err := unix.Getsid(0)
	return err == nil && unix.Getpgrp() != leader
}

// wait starts an interval.
func (s *session) wait() tea.Cmd {
	s.due++
	due := s.due
	return tea.Tick(s.every, func(time.Time) tea.Msg { return due })
}

// ask sends a request, unless one is in progress.
func (s *session) ask() tea.Cmd {
	if s.paused || s.asking {
		return nil
	}
	s.asking = true
	return func() tea.Msg {
		t, err := s.Read(s.ctx)
		return answer{t, err}
	}
}

func (s *session) take(a answer) {
	switch {
	case s.paused: // requested before
	case a.err != nil:
		s.trouble = a.err.Error()
	default:
		s.trouble, s.now = "", a.top
		s.see(s.now)
	}
}

// act explains, blocks or lifts the block of the chosen row.
func (s *session) act(key string) tea.Cmd {
	target := s.target(s.now)
	if target == "" {
		s.note = "no row to choose here: s, d, f or x shows some"
		return nil
	}
	do := func(page bool, of func(context.Context, string) (string, error)) tea.Cmd {
		return func() tea.Msg {
			text, err := of(s.ctx, target)
			if err != nil {
				return result{text: err.Error()}
			}
			return result{text, page}
		}
	}
	switch key {
	case "enter":
		return do(true, s.Rows.Explain)
	case "b":
		s.asks, s.onYes = "block "+target+" for an hour?", do(false, s.Rows.Block)
	case "u":
		s.asks, s.onYes = "lift the block of "+target+"?", do(false, s.Rows.Lift)
	}
	return nil
}
