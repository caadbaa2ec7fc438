package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/api/client"
	"weir/control/config"
	"weir/control/durable"
	"weir/control/fleet/enrollment"
	"weir/control/quantity"
	"weir/control/serve"
)

// copied is a copy of a hub.
type copied struct {
	File  string    `json:"file"`
	Time  time.Time `json:"time"` // when the hub began to write it
	Bytes int64     `json:"bytes"`
}

func newFollow() *cobra.Command {
	every := quantity.Duration(time.Minute)
	level := config.LogLevel(slog.LevelInfo)
	c := &cobra.Command{
		Use:   "follow URL TOKEN FILE",
		Short: "Keep a copy of a hub, to take over from it",
		Long: `Copies the keys and the state of the hub at a URL to a file, again and again
until it is stopped, on a host that is to be the hub if that one is gone for
good. The token is of weir-hub operator create --role standby. The file is a
backup, which only its owner may read. A copy that is not whole replaces none.

To take over, stop this command, weir-hub restore FILE with a hub.yaml of this
host, and start weir-hub. Nodes come if servers names this host, too. What
commands changed since the last copy is taken back from nodes.

With --once it copies once: the exit code is 1 where that failed.`,
		Example: "  weir-hub follow https://hub.example.net:4223 1f0c22aa.kPz... /root/hub.tar.gz\n" +
			"  systemctl stop weir-hub-follow && weir-hub restore /root/hub.tar.gz && systemctl start weir-hub",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 3 {
				return usageError{errors.New("want the URL of a hub, a token, and a file")}
			}
			return nil
		},
	}
	c.Flags().TextVar(&every, "every", every, "`time` from one copy to the next")
	once := c.Flags().Bool("once", false, "copy once")
	asJSON := c.Flags().Bool("json", false, "with --once: print JSON")
	c.Flags().TextVar(&level, "log-level", level, "least `level` that is logged: debug, info, warn or error")
	c.RunE = func(c *cobra.Command, args []string) error {
		at, err := enrollment.JoinURL(args[0])
		if err != nil {
			return usageError{err}
		}
		t, err := enrollment.ParseToken(args[1])
		if err != nil {
			return usageError{err}
		}
		if every < quantity.Duration(time.Second) {
			return usageError{errors.New("--every: want at least 1s")}
		}
		u, err := url.Parse(at)
		if err != nil {
			return err
		}
		of, file := client.DialOperator(at, args[1], t.TLS(u.Hostname())), args[2]
		if !*once {
			var how serve.Logging
			how.Set(slog.Level(level), false)
			keepCopy(c.Context(), of, file, time.Duration(every), how.New(c.ErrOrStderr(), serve.ToJournal(terminal.Raw(c.ErrOrStderr()))))
			return nil
		}
		made, err := copyHub(c.Context(), of, file)
		if err != nil {
			return err
		}
		if *asJSON {
			return terminal.PrintJSON(c.OutOrStdout(), made)
		}
		fmt.Fprintf(c.OutOrStdout(), "copied to %s: the hub as of %s, %d bytes\n", file, made.Time.Local().Format(time.DateTime), made.Bytes)
		return nil
	}
	return c
}

// keepCopy copies a hub until ctx is done.
func keepCopy(ctx context.Context, of *client.Client, file string, every time.Duration, log *slog.Logger) {
	var last copied
	failed := true // so that the first copy is logged
	for {
		made, err := copyHub(ctx, of, file)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && last.Time.IsZero():
			log.Error("no copy of the hub yet: " + err.Error())
		case err != nil:
			log.Error("no new copy of the hub: "+err.Error(), "file", file, "as_of", last.Time)
		case failed:
			log.Info("copied the hub", "file", file, "as_of", made.Time, "bytes", made.Bytes)
		default:
			log.Debug("copied the hub", "file", file, "as_of", made.Time, "bytes", made.Bytes)
		}
		if failed = err != nil; !failed {
			last = made
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

// copyHub copies a hub to a file, which is replaced once the copy is whole.
func copyHub(ctx context.Context, of *client.Client, file string) (made copied, err error) {
	next := file + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return made, err
	}
	f, err := os.OpenFile(next, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return made, err
	}
	defer f.Close()
	fail := func(err error) (copied, error) { return copied{}, errors.Join(err, os.Remove(next)) }
	if err := of.Backup(ctx, f); err != nil {
		return fail(err)
	}
	made.File = file
	if made.Bytes, err = f.Seek(0, io.SeekCurrent); err != nil {
		return fail(err)
	}
	if _, err = f.Seek(0, io.SeekStart); err != nil {
		return fail(err)
	}
	made.Time, err = readBackup(f, func(_ *tar.Header, text io.Reader) error {
		_, err := io.Copy(io.Discard, text)
		return err
	})
	if err != nil {
		return fail(fmt.Errorf("the copy is not whole: %w", err))
	}
	if err := f.Sync(); err != nil {
		return fail(err)
	}
	return made, durable.Rename(next, file)
}
