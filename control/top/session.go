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
	ctx            context.Context // of what weir is asked
	now            *api.Top        // what is shown
	columns, lines int             // of the terminal; 0 until it is known
	due            tick            // the one that is waited for
	asking         bool            // weir has yet to answer
}

// tick is the end of an interval. Its number tells it from one of an interval
// that was changed meanwhile.
type tick int

// answer is what weir said.
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
	}
	return s, nil
}

func (s *session) View() tea.View {
	var painted []string
	for _, l := range s.screen(s.now, s.columns, s.lines) {
		painted = append(painted, l.paint())
	}
	v := tea.NewView(strings.Join(painted, "\n"))
	v.AltScreen = true // it keeps what was on the terminal
	return v
}

// press does what a key is for.
func (s *session) press(key string) tea.Cmd {
	before := s.view
	switch key {
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
		return s.ask() // unless it is still
	}
	return nil
}

// stoppable tells whether there is a shell that would let the process go on
// again: there is none where its group leads the session, as under ssh -t.
func stoppable() bool {
	leader, err := unix.Getsid(0)
	return err == nil && unix.Getpgrp() != leader
}

// wait begins an interval, from now.
func (s *session) wait() tea.Cmd {
	s.due++
	due := s.due
	return tea.Tick(s.every, func(time.Time) tea.Msg { return due })
}

// ask asks weir, unless it has not answered yet.
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
	case s.paused: // it was asked before
	case a.err != nil:
		s.trouble = a.err.Error()
	default:
		s.trouble, s.now = "", a.top
		s.see(s.now)
	}
}
