// Command weir-hub publishes lists to a fleet of nodes: see `weir-hub --help`.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"weir/cmd/interrupt"
	"weir/cmd/share"
	"weir/cmd/terminal"
	"weir/control/config"
	"weir/control/feed"
	"weir/control/fleet/authority"
	"weir/control/fleet/broker"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/hub"
	"weir/control/serve"
)

// version and commit are set by the linker; see the Makefile.
var (
	version = "dev"
	commit  = ""
)

// The exit codes, as those of weir.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

const defaultConfig = "/etc/weir-hub/hub.yaml"

func main() {
	if os.Getenv("GOGC") == "" {
		// Most of the memory is the lists' and the connections', which change little: less
		// of it waits for the collector. 500 nodes that start anew at once took 1.26 GB, and
		// take 0.82 with 50. A thousand that are connected take 5 % less with 40 than with 50.
		debug.SetGCPercent(40)
	}
	feed.BoundHeap() // where much is asked for at once
	ctx, stop := interrupt.Context()
	code := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// usageError is a wrong command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// execute runs a command line and returns the exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	out := terminal.NewWriter(stdout)
	stderr = terminal.NewWriter(stderr)
	root.SetArgs(args)
	root.SetIn(interrupt.NewReader(ctx, os.Stdin))
	root.SetOut(out)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	err = cmp.Or(err, out.Err())
	if serve.ToJournal(terminal.Raw(stderr)) {
		stderr = serve.JournalError(stderr)
	}
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "weir-hub: %v\nTry `%s --help`.\n", err, command.CommandPath())
		return exitUsage
	}
	fmt.Fprintf(stderr, "weir-hub: %v\n", err)
	return exitFailure
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "weir-hub",
		Short: "Publish lists to a fleet of nodes",
		Long: `weir-hub reads lists from feeds and takes entries from commands, as the daemon
does, and publishes each change to all nodes of a fleet over NATS JetStream,
with a server inside it or a separate cluster. weir hub runs the same commands.

Exit codes: 0 done, 1 failed, 2 wrong command line.`,
		Example: `  weir-hub init /etc/weir-hub/keys
  weir-hub run --config /etc/weir-hub/hub.yaml
  weir-hub enroll edge-1 --label paris,canary >edge-1.json
  weir-hub revoke edge-1`,
		Args:          noCommand,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       strings.TrimSpace(version + " " + commit),
	}
	root.SetVersionTemplate("weir-hub {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newInit(), newToken(), newOperator(), newEnroll(), newRevoke(), newForget(), newLabel(), newNodes(), newCluster(), newSite(), newRelay(), newRotate(), newBackup(), newRestore(), newFollow(), newCheck(), newRun(), newShare())
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			c.Args = aboutCommand // else it describes weir-hub
		}
	}
	return root
}

// newShare is for those who install weir-hub, not for those who use it.
func newShare() *cobra.Command {
	return &cobra.Command{
		Use:     "share DIRECTORY",
		Hidden:  true,
		Short:   "Write the man pages and the shell completions",
		Example: "  weir-hub share dist/share-hub",
		Args:    exactly("DIRECTORY"),
		RunE: func(_ *cobra.Command, args []string) error {
			return share.Program{Root: newRoot(), Version: version, Files: manFiles, SeeAlso: `\fBhub.yaml\fR(5), \fBweir\fR(8)`}.Write(args[0])
		},
	}
}

// manFiles are the files of the man page.
const manFiles = `.TP
.I /etc/weir-hub/hub.yaml
The configuration of the service.
.TP
.I /etc/weir-hub/keys
The keys of the fleet, which only the hub's user may read.
.TP
.I /var/lib/weir-hub
The versions of all lists, manual entries, and the broker's stream.
.TP
.I /run/weir-hub/hub.sock
The API of the running hub.
`

// noCommand takes no argument: one is the name of a command that does not exist.
func noCommand(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%q: %s has no such command", args[0], c.CommandPath())}
	}
	return nil
}

// aboutCommand takes the words of a command, or none.
func aboutCommand(c *cobra.Command, args []string) error {
	about, rest, err := c.Root().Find(args)
	if err != nil {
		return usageError{err}
	}
	return noCommand(about, rest)
}

// noArgs takes no arguments.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%q: %s takes no arguments", args[0], c.CommandPath())}
	}
	return nil
}

// exactly takes one argument.
func exactly(name string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return usageError{fmt.Errorf("%s is missing", name)}
		case len(args) > 1:
			return usageError{fmt.Errorf("%q: %s takes %s, and nothing more", args[1], c.CommandPath(), name)}
		}
		return nil
	}
}

func newInit() *cobra.Command {
	return &cobra.Command{
		Use:   "init DIRECTORY",
		Short: "Make the keys of a new fleet",
		Long: `Makes the keys of a new fleet in a directory: the authority that signs
certificates, the NATS operator and accounts, and the key that lists are signed
with. They make a host the fleet's hub: keep a backup, offline. Nodes trust no
other keys: without these, all nodes have to be enrolled anew.`,
		Example: "  weir-hub init /etc/weir-hub/keys",
		Args:    exactly("DIRECTORY"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := actAsOwner(args[0]); err != nil {
				return err
			}
			if _, err := authority.Init(args[0]); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "made in %s; keep a backup: without it, all nodes have to be enrolled anew\n", args[0])
			return nil
		},
	}
}

// configFlag is the flag --config.
func configFlag(c *cobra.Command) *string {
	return c.Flags().StringP("config", "c", defaultConfig, "`file` with the hub's configuration")
}

// openedAsOwner is opened for commands that change what the keys' owner has.
func openedAsOwner(file string) (*config.Hub, *authority.Authority, error) {
	h, err := config.LoadHub(file)
	if err != nil {
		return nil, nil, err
	}
	if err := actAsOwner(string(h.Keys)); err != nil {
		return nil, nil, err
	}
	a, err := authority.Open(string(h.Keys))
	if err == nil {
		a.SetTerms(hub.Terms(h))
	}
	return h, a, err
}

// actAsOwner makes root act as the owner of the keys' directory, who runs the hub and
// must be able to read new files there.
func actAsOwner(dir string) error {
	owner := ownerFor(dir)
	if owner == nil {
		return nil
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(int(owner.Gid)), syscall.Setuid(int(owner.Uid))); err != nil {
		return fmt.Errorf("become the owner of %s: %w", dir, err)
	}
	return nil
}

// whileOwner calls fn, with root acting as the owner of the keys' directory, and then as root again.
func whileOwner(dir string, fn func() error) error {
	owner := ownerFor(dir)
	if owner == nil {
		return fn()
	}
	group := os.Getegid()
	groups, err := os.Getgroups()
	if err == nil {
		err = errors.Join(syscall.Setgroups(nil), syscall.Setegid(int(owner.Gid)), syscall.Seteuid(int(owner.Uid)))
	}
	if err != nil {
		err = fmt.Errorf("become the owner of %s: %w", dir, err)
	} else {
		err = fn()
	}
	return errors.Join(err, syscall.Seteuid(0), syscall.Setegid(group), syscall.Setgroups(groups))
}

// ownerFor returns the owner of a directory as whom root is to act, nil for no one else.
func ownerFor(dir string) *syscall.Stat_t {
	info, err := os.Stat(dir)
	if err != nil || os.Geteuid() != 0 {
		return nil // opening it says what is wrong
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid == 0 {
		return nil
	}
	return owner
}

// opened reads a configuration, and the keys it names.
func opened(file string) (*config.Hub, *authority.Authority, error) {
	h, err := config.LoadHub(file)
	if err != nil {
		return nil, nil, err
	}
	a, err := authority.Open(string(h.Keys))
	return h, a, err
}

func newEnroll() *cobra.Command {
	var labels []string
	var site string
	c := &cobra.Command{
		Use:   "enroll NODE [--label NAME,...] [--site SITE]",
		Short: "Print the file with which a host joins the fleet",
		Long: `Prints one file that has all a host needs, where the host cannot reach the hub to
join by itself: see weir-hub token. Copy it there, readable by root
and the group of weir's service only, and name it in weir.yaml: fleet: {enroll:
FILE}. It contains the node's secrets, and is not kept here. A node of this name
that was enrolled before is revoked. The hub need not run.

Labels group nodes, for rollouts. A node of a site connects to the site's
server, and not to the hub: see weir-hub site. The node renews its certificate
by itself: certificates in hub.yaml says how long that is valid.`,
		Example: `  weir-hub enroll edge-1 --label paris,canary >edge-1.json
  weir-hub enroll edge-1 |
    ssh root@edge-1 install -m 0640 -g weir /dev/stdin /etc/weir/fleet.json`,
		Args: exactly("NODE"),
	}
	c.Flags().StringSliceVar(&labels, "label", nil, "`names` of groups that the node is in, joined by commas")
	c.Flags().StringVar(&site, "site", "", "`name` of the site whose server the node connects to")
	file := configFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := enrollment.CheckName(args[0]); err != nil {
			return usageError{err}
		}
		h, a, err := openedAsOwner(*file)
		if err != nil {
			return err
		}
		n, err := a.EnrollAt(site, args[0], labels, h.Servers)
		if err != nil {
			return err
		}
		n.TLSFirst = h.Broker.TLSFirst != "" && site == ""
		text, err := n.Marshal()
		if err == nil {
			_, err = c.OutOrStdout().Write(text)
		}
		return err
	}
	return c
}

func newRevoke() *cobra.Command {
	c := &cobra.Command{
		Use:   "revoke NODE [--yes] [--site | --user KEY]",
		Short: "Cut a node off, or a site",
		Long: `Revokes the credentials of a node. A running hub disconnects it within a second
or two and does not let it in again; servers of sites do the same as soon as
they learn of it. The node goes on filtering by the lists that it has. The last
node of a wave of rollouts needs --yes: changes wait for such a node.

With --site, the credentials of a site's server are revoked. Its nodes go on
with what that server has, until they are enrolled anew to connect elsewhere.

With --user, only the credentials with this public key are revoked, and other
credentials of the node stay valid. The hub need not know them: after a restore
from a backup, it does not know who was enrolled since. It warns of each such
node that connects, and the warning has the command that revokes it.`,
		Example: "  weir-hub revoke edge-1\n  weir-hub revoke --site paris\n  weir-hub revoke edge-1 --user UABC...",
		Args:    exactly("NODE"),
	}
	site := c.Flags().Bool("site", false, "NODE is the name of a site")
	yes := c.Flags().Bool("yes", false, "also where it is the last node of a wave of rollouts")
	user := c.Flags().String("user", "", "public `key` of the user to revoke, as the hub logs it")
	file := configFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if *site && c.Flags().Changed("user") {
			return usageError{errors.New("--site and --user exclude each other")}
		}
		h, a, err := openedAsOwner(*file)
		if err != nil {
			return err
		}
		revoke := a.Revoke
		if !*site && !*yes && !c.Flags().Changed("user") {
			members, err := a.Members()
			if err == nil {
				err = fillsWaves(h, members, func(m map[string]authority.Member) { delete(m, args[0]) })
			}
			if err != nil {
				return err
			}
		}
		switch {
		case *site:
			revoke = a.RevokeSite
		case c.Flags().Changed("user"):
			revoke = func(node string) error { return a.RevokeUser(node, *user) }
		}
		if err := revoke(args[0]); err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "revoked: %s\n", args[0])
		return nil
	}
	return c
}

func newForget() *cobra.Command {
	c := &cobra.Command{
		Use:   "forget NODE",
		Short: "Show a revoked node no more",
		Long: `Removes a node that is revoked and gone for good from weir fleet status, the
console and weir hub nodes. Its credentials stay revoked, and its records stay
in the audit. Another node can be enrolled under the same name.`,
		Example: "  weir-hub revoke edge-1 && weir-hub forget edge-1",
		Args:    exactly("NODE"),
	}
	file := configFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		_, a, err := openedAsOwner(*file)
		if err != nil {
			return err
		}
		if err := a.Forget(args[0]); err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "forgotten: %s\n", args[0])
		return nil
	}
	return c
}

func newNodes() *cobra.Command {
	c := &cobra.Command{
		Use:   "nodes",
		Short: "Show which nodes were enrolled",
		Long: `Shows the nodes that were enrolled, or revoked, with the date and their labels,
from the directory of keys: the hub need not run. weir fleet status shows which
of them are connected, and what they filter by.`,
		Example: "  weir-hub nodes\n  weir-hub nodes --json | jq -r '.nodes[].node'",
		Args:    noArgs,
	}
	shows(c, "nodes", func(a *authority.Authority) ([]authority.Member, error) {
		members, err := a.Members()
		all := slices.Collect(maps.Values(members))
		slices.SortFunc(all, func(a, b authority.Member) int { return strings.Compare(a.Name, b.Name) })
		return all, err
	}, func(m authority.Member) string {
		state := "enrolled " + m.Enrolled.Format("2006-01-02")
		if !m.Revoked.IsZero() {
			state = "revoked " + m.Revoked.Format("2006-01-02")
		}
		return fmt.Sprintf("%-24s %-20s %s", m.Name, state, strings.Join(m.Labels, ","))
	})
	return c
}

func newRun() *cobra.Command {
	c := &cobra.Command{
		Use:   "run --config FILE",
		Short: "Publish lists until stopped",
		Long: `Publishes the lists of a configuration until it is stopped by SIGINT or SIGTERM.
Nodes go on filtering without it, and report that they are stale after max_age.

SIGHUP, or weir fleet reload, reads the configuration again and takes in all of
it or nothing: nodes stay connected. keys, state_dir, servers, sites, broker,
join, api and console change with a restart only.`,
		Example: "  weir-hub run --config /etc/weir-hub/hub.yaml",
		Args:    noArgs,
	}
	file := configFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		h, a, err := opened(*file)
		if err != nil {
			return err
		}
		if err := authority.CheckComplete(string(h.StateDir)); err != nil {
			return err
		}
		return run(c.Context(), *file, h, a, c.ErrOrStderr())
	}
	return c
}

// run runs a hub with the configuration of a file, and its broker if it has one inside.
func run(ctx context.Context, file string, c *config.Hub, a *authority.Authority, stderr io.Writer) error {
	defer interrupt.InOrder()()
	p := &process{}
	log := p.logging.New(stderr, serve.ToJournal(terminal.Raw(stderr)))
	p.log = log
	p.setLog(c.Log)
	hangUps := make(chan os.Signal, 1) // before lists are read, for a reload must not kill
	signal.Notify(hangUps, syscall.SIGHUP)
	defer signal.Stop(hangUps)
	var servers hub.Broker
	if c.Broker.Listen != "" {
		b, err := broker.Start(broker.Options{
			Authority: a, Dir: filepath.Join(string(c.StateDir), "broker"), Listen: string(c.Broker.Listen), Sites: string(c.Broker.ListenSites),
			Names: hosts(slices.Concat(c.Servers, c.Sites)), Log: log,
			TLSFirst: map[config.TLSFirst]broker.TLSFirst{config.TLSFirstAccept: broker.TLSAccept, config.TLSFirstRequire: broker.TLSRequire}[c.Broker.TLSFirst],
		})
		if err != nil {
			return err
		}
		defer b.Close()
		servers = b
	} else {
		e, err := hub.NewExternal(c.Broker.Servers, a, log)
		if err != nil {
			return err
		}
		defer e.Close()
		servers = e
	}
	problems := new(serve.Problems)
	h, err := hub.Open(hub.Options{
		Config: c, Authority: a, Broker: servers, Log: log, Version: version,
		Reader: config.HubFile(file), Process: p, Listeners: problems,
		Backup: backups{c},
	})
	if err != nil {
		return err
	}
	defer h.Close()
	ctx, cancel := context.WithCancel(ctx)
	if p.manager, err = serve.DialManager(); err != nil {
		cancel()
		return err
	}
	defer p.manager.Close()
	serving := serve.Config{
		Socket: string(c.API.Socket), Group: c.API.Group, ConsoleHandler: h.Console(), Problems: problems,
		Console: serve.TLS{Address: string(c.Console.Listen), Cert: string(c.Console.TLS.Cert), Key: string(c.Console.TLS.Key), ClientCA: string(c.Console.TLS.ClientCA)},
	}
	if c.Join.Listen != "" {
		secure, err := a.JoinTLS(hosts(append(slices.Concat(c.Servers, c.Sites), c.JoinURL())))
		if err != nil {
			cancel()
			return err
		}
		serving.Join, serving.Joins = string(c.Join.Listen), h.Joins(secure)
	}
	if x := c.Console.Proxy; x.Socket != "" {
		serving.Proxy, serving.ProxyHandler = serve.Proxy{Socket: string(x.Socket), Group: x.Group}, h.ConsoleProxy()
	}
	wait := serving.RunHub(ctx, h, log)
	defer wait()
	p.scrapes = func(address string) func() {
		ctx, cancel := context.WithCancel(ctx)
		wait := serve.Config{Metrics: address, Problems: problems}.RunHub(ctx, h, log)
		return func() { cancel(); wait() }
	}
	p.start(c)
	defer p.stop()
	var reloading sync.WaitGroup
	defer reloading.Wait()
	defer cancel()
	reloading.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangUps:
				_, _ = h.Reload(ctx) // it is in the log
			}
		}
	})
	log.Info("publishing", "lists", len(c.AllLists()), "servers", strings.Join(c.Servers, ","))
	return h.Run(ctx)
}

// process has the listeners and the log, which a reload of the hub changes, too.
type process struct {
	logging serve.Logging
	log     *slog.Logger
	manager *serve.Manager
	scrapes func(address string) (stop func()) // serves metrics

	mu          sync.Mutex
	metrics     config.Metrics
	stopScrapes func() // nil: none are served
}

// setLog sets what is logged, and how.
func (p *process) setLog(how config.Log) {
	p.logging.Set(slog.Level(how.Level), how.Format == config.LogJSON)
}

// start begins to serve metrics, and says that the hub is ready.
func (p *process) start(c *config.Hub) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serveMetrics(c.Metrics)
	p.ready(c)
}

// serveMetrics serves metrics where a configuration says. p.mu is held.
func (p *process) serveMetrics(m config.Metrics) {
	if p.stopScrapes != nil {
		p.stopScrapes()
		p.stopScrapes = nil
	}
	if text := m.Warning(); text != "" {
		p.log.Warn(text)
	}
	if p.metrics = m; m.Listen != "" {
		p.stopScrapes = p.scrapes(string(m.Listen))
	}
}

// ready says that the hub has a configuration.
func (p *process) ready(c *config.Hub) {
	if err := p.manager.Ready(fmt.Sprintf("%d lists", len(c.AllLists()))); err != nil {
		p.log.Warn("the service manager does not know that the hub is ready: " + err.Error())
	}
}

// stop stops to serve metrics.
func (p *process) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serveMetrics(config.Metrics{})
}

// Check implements [hub.Process].
func (p *process) Check(c *config.Hub) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Metrics == p.metrics || c.Metrics.Listen == "" {
		return nil
	}
	l, err := net.Listen("tcp", string(c.Metrics.Listen))
	if errors.Is(err, syscall.EADDRINUSE) && samePort(c.Metrics.Listen, p.metrics.Listen) {
		return nil // by the listener that goes
	}
	if err != nil {
		return fmt.Errorf("metrics.listen: %w", err)
	}
	return l.Close()
}

// samePort reports whether addresses have the same port.
func samePort(a, b config.Address) bool {
	_, one, _ := net.SplitHostPort(string(a))
	_, other, _ := net.SplitHostPort(string(b))
	return one == other
}

// Configure implements [hub.Process].
func (p *process) Configure(c *config.Hub) {
	p.setLog(c.Log)
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Metrics != p.metrics {
		p.serveMetrics(c.Metrics)
	}
	p.ready(c)
}

// hosts returns the names and addresses in URLs.
func hosts(servers []string) (all []string) {
	for _, s := range servers {
		if u, err := url.Parse(s); err == nil {
			if host, _, err := net.SplitHostPort(u.Host); err == nil {
				all = append(all, host)
			}
		}
	}
	return all
}
