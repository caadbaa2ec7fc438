package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"weir/cmd/interrupt"
	"weir/cmd/terminal"
	"weir/control/config"
	"weir/control/fleet/broker"
	"weir/control/fleet/enrollment"
	"weir/control/serve"
)

func newSite() *cobra.Command {
	var servers []string
	c := &cobra.Command{
		Use:   "site SITE --server tls://HOST:PORT",
		Short: "Print the file with which a host becomes the server of a site",
		Long: `Prints one file that has all a host needs to be the server of a site: copy it
there, readable by the user that runs weir-hub relay only. Nodes of the site
connect to that host, and go on, or start, while the hub cannot be reached.

It contains the site's secrets, and is not kept here. A site of this name that
was enrolled before is revoked. sites in the hub's configuration says where the
server reaches the hub. The hub need not run.`,
		Example: `  weir-hub site paris --server tls://paris-gw.example.net:4222 >paris.json
  weir-hub enroll edge-7 --site paris >edge-7.json`,
		Args: exactly("SITE"),
	}
	c.Flags().StringSliceVar(&servers, "server", nil, "`URLs` at which nodes of the site reach its server, joined by commas")
	file := configFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		h, a, err := openedAsOwner(*file)
		if err != nil {
			return err
		}
		if len(h.Sites) == 0 {
			return fmt.Errorf("%s: sites does not say where the servers of sites reach the hub", *file)
		}
		if len(servers) == 0 {
			return usageError{fmt.Errorf("--server is missing: want the URL at which nodes of the site reach its server, tls://HOST:PORT")}
		}
		s, err := a.EnrollSite(args[0], servers, h.Sites)
		if err != nil {
			return err
		}
		text, err := s.Marshal()
		if err != nil {
			return err
		}
		_, err = c.OutOrStdout().Write(text)
		return err
	}
	return c
}

func newRelay() *cobra.Command {
	var listen, dir string
	level := config.LogLevel(slog.LevelInfo)
	c := &cobra.Command{
		Use:   "relay FILE",
		Short: "Run the server of a site until stopped",
		Long: `Runs the server of a site, with a file that weir-hub site has printed, until it
is stopped by SIGINT or SIGTERM. It keeps a mirror of the hub's stream on
disk, and needs no connection to the hub to start.

SIGHUP reads the file again. If another one of the same site is there, as after
the site was enrolled anew, the server starts anew with it, and nodes connect
again; if it cannot be used, the server goes on with the former one.`,
		Example: "  weir-hub relay /etc/weir/site.json",
		Args:    exactly("FILE"),
	}
	c.Flags().StringVar(&listen, "listen", "0.0.0.0:4222", "`address` and port to listen at for nodes")
	c.Flags().StringVar(&dir, "state-dir", "/var/lib/weir-relay", "`directory` for the mirror")
	c.Flags().TextVar(&level, "log-level", level, "least `level` that is logged: debug, info, warn or error")
	c.RunE = func(c *cobra.Command, args []string) error {
		e, err := enrollment.ReadSite(args[0])
		if err != nil {
			return err
		}
		var how serve.Logging
		how.Set(slog.Level(level), false)
		log := how.New(c.ErrOrStderr(), serve.ToJournal(terminal.Raw(c.ErrOrStderr())))
		hangUps := make(chan os.Signal, 1)
		signal.Notify(hangUps, syscall.SIGHUP)
		defer signal.Stop(hangUps)
		defer interrupt.InOrder()()
		r := relay{file: args[0], log: log, options: broker.SiteOptions{Enrollment: e, Dir: dir, Listen: listen, Log: log}}
		return r.run(c.Context(), hangUps)
	}
	return c
}

// relay is the server of a site, with the file that says which.
type relay struct {
	file    string
	options broker.SiteOptions
	log     *slog.Logger
}

// run runs the server until ctx is done, and has it take another file where one is there at a
// signal.
func (r *relay) run(ctx context.Context, hangUps <-chan os.Signal) error {
	s, err := r.start()
	for err == nil {
		next := r.serve(ctx, s, hangUps)
		s.Close()
		if next == nil {
			return nil
		}
		former := r.options.Enrollment
		r.options.Enrollment = *next
		if s, err = r.start(); err != nil {
			r.log.Error("the file of the site cannot be used, the former one stays: " + err.Error())
			r.options.Enrollment = former
			s, err = r.start()
		}
	}
	return err
}

func (r *relay) start() (*broker.Site, error) {
	s, err := broker.StartSite(r.options)
	if err == nil {
		r.log.Info("listening for nodes", "site", r.options.Enrollment.Name, "address", s.URL())
	}
	return s, err
}

// serve looks after the server until ctx is done, or another file of the site is there, which
// it returns.
func (r *relay) serve(ctx context.Context, s *broker.Site, hangUps <-chan os.Signal) *enrollment.Site {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { _ = s.Run(ctx) }) // it ends with ctx
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangUps:
		}
		next, err := enrollment.ReadSite(r.file)
		if err == nil && next.Name != r.options.Enrollment.Name {
			err = fmt.Errorf("%s is of site %s: start another server for it", r.file, next.Name)
		}
		switch {
		case err != nil:
			r.log.Error("the file of the site is not read again, the former one stays: " + err.Error())
		case reflect.DeepEqual(next, r.options.Enrollment):
			r.log.Info("the file of the site was read again: it is the same")
		default:
			r.log.Info("the file of the site is another one: starting anew with it")
			return &next
		}
	}
}
