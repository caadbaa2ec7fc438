package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Clients that fail again and again do not fill the log.
func TestComplaints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := &complaints{log: slog.New(slog.NewTextHandler(&log, nil))}
		for i := range 1000 {
			fmt.Fprintf(c, "http: TLS handshake error from 192.0.2.1:%d: EOF\n", i)
		}
		if n := strings.Count(log.String(), "\n"); n != maxComplaints {
			t.Errorf("%d lines in an interval", n)
		}
		time.Sleep(complaintInterval)
		fmt.Fprintln(c, "http: another one")
		if text := log.String(); !strings.Contains(text, fmt.Sprintf("lines=%d", 1000-maxComplaints)) || !strings.Contains(text, "another one") {
			t.Errorf("the next interval: %s", text)
		}
	})
}
