package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"weir/control/api"
	tests "weir/tests/wait"
)

// lineCounter is an output that ends a command when it has a number of lines.
type lineCounter struct {
	text bytes.Buffer // not embedded: its WriteString would not count
	end  context.CancelFunc
	n    int
}

func (l *lineCounter) String() string { return l.text.String() }

func (l *lineCounter) Write(b []byte) (int, error) {
	n, err := l.text.Write(b)
	if strings.Count(l.String(), "\n") == l.n {
		l.end()
	}
	return n, err
}

func TestAnnounce(t *testing.T) {
	d := &fakeDaemon{status: api.Status{Protected: []api.Protected{}}}
	d.top = &api.Top{Trackers: []api.Tracker{{Key: "dst", Unit: "packets", Flows: []api.Flow{{Key: "203.0.113.7", Heavy: true}}}}}
	socket := serveDaemon(t, d)
	ctx, cancel := context.WithTimeout(t.Context(), tests.Patience)
	out, log := lineCounter{end: cancel, n: 1}, bytes.Buffer{}
	code := execute(ctx, []string{"announce", "--own", "203.0.113.0/24", "--community", "65535:666,64500:1", "--next-hop", "192.0.2.1", "--socket", socket},
		strings.NewReader("done\nerror\n"), &out, &log)
	const route = "route 203.0.113.7/32 next-hop 192.0.2.1 community [65535:666 64500:1]\n"
	if code != exitOK || out.String() != "announce "+route+"withdraw "+route {
		t.Errorf("%d: %s%s", code, out.String(), log.String())
	}
	for want, args := range map[string][]string{
		"--own is missing":     nil,
		"without host bits":    {"--own", "203.0.113.7/24"},
		"as in 65535:666":      {"--own", "203.0.113.0/24", "--community", "no-export]"},
		"blackhole or flow":    {"--own", "203.0.113.0/24", "--kind", "rtbh"},
		"100ms or more":        {"--own", "203.0.113.0/24", "--interval", "1ms"},
		"goes with --kind flo": {"--own", "203.0.113.0/24", "--tracker", "flow"},
		"want an address":      {"--own", "203.0.113.0/24", "--next-hop", "self; x"},
	} {
		if code, out, log := weir(t, "", append([]string{"announce"}, args...)...); code != exitUsage || out != "" || !strings.Contains(log, want) {
			t.Errorf("%q: %d %s%s", args, code, out, log)
		}
	}
}
