package main

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

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
is stopped by SIGINT or SIGTERM. It has a mirror of what the hub publishes, on
disk, and needs no connection to the hub to start.`,
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
		log := how.New(c.ErrOrStderr(), serve.ToJournal(c.ErrOrStderr()))
		s, err := broker.StartSite(broker.SiteOptions{Enrollment: e, Dir: dir, Listen: listen, Log: log})
		if err != nil {
			return err
		}
		defer s.Close()
		log.Info("listening for nodes", "site", e.Name, "address", s.URL())
		return s.Run(c.Context())
	}
	return c
}
