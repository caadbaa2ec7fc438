package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"weir/control/fleet/authority"
)

func newCluster() *cobra.Command {
	var made authority.Cluster
	c := &cobra.Command{
		Use:   "cluster DIRECTORY",
		Short: "Make the configuration of a NATS cluster for the fleet",
		Long: `Makes a directory for each server in broker.servers of the hub's configuration,
named after its host, with a configuration for nats-server (2.15), and a
certificate and its key. Copy each to its host, readable by the user that runs
nats-server only, and start: nats-server -c FILES/nats-server.conf

The servers trust the fleet's operator: no account is made by hand. Certificates
are valid for five years; run this again for new ones. The hub need not run.`,
		Example: `  weir-hub cluster /root/cluster
  scp -r /root/cluster/nats1.example.net/. nats1.example.net:/etc/nats/`,
		Args: exactly("DIRECTORY"),
	}
	c.Flags().IntVar(&made.Routes, "route-port", 6222, "`port` at which the servers connect to each other")
	c.Flags().IntVar(&made.Leaves, "site-port", 7422, "`port` at which the servers of sites connect")
	c.Flags().StringVar(&made.Files, "files", "/etc/nats", "`directory` on the servers with these files")
	c.Flags().StringVar(&made.State, "state", "/var/lib/nats", "`directory` on the servers for what is published")
	file := configFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		h, a, err := opened(*file)
		if err != nil {
			return err
		}
		made.Servers, made.Names = h.Broker.Servers, hosts(h.Servers)
		if len(made.Servers) == 0 {
			return fmt.Errorf("%s: broker.servers names no servers: with broker.listen, the hub is the server", *file)
		}
		for _, port := range []int{made.Routes, made.Leaves} {
			if port < 1 || port > 65535 {
				return usageError{fmt.Errorf("port %d: want 1 to 65535", port)}
			}
		}
		if !filepath.IsAbs(made.Files) || !filepath.IsAbs(made.State) {
			return usageError{errors.New("--files and --state: want absolute paths")}
		}
		dirs, err := made.Write(a, args[0])
		if err != nil {
			return err
		}
		for _, d := range dirs {
			fmt.Fprintln(c.OutOrStdout(), d)
		}
		return nil
	}
	return c
}
