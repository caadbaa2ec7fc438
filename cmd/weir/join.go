package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"weir/cmd/terminal"
	"weir/control/api"
	"weir/control/api/client"
	"weir/control/config"
	"weir/control/durable"
	"weir/control/fleet/enrollment"
)

// joinLook is how often weir join looks whether the host filters by a list of the fleet.
const joinLook = 200 * time.Millisecond

// joined describes a host that has joined, in JSON.
type joined struct {
	Node      string   `json:"node"`
	Already   bool     `json:"already"`   // before
	Connected bool     `json:"connected"` // to the hub
	Lists     []string `json:"lists"`     // of the fleet, which the host filters by
	Monitor   bool     `json:"monitor"`   // it drops nothing

	anew bool // by another file than before, or the first one
}

// joining is a host that joins a fleet.
type joining struct {
	hub   string
	token enrollment.Token
	name  string // "": by the host's name
	file  string // weir.yaml
	says  io.Writer

	denied func(context.Context) bool // whether the hub lets the node in no more

	conf   *config.Config
	enroll string // the enrollment file
}

func newJoin() *cobra.Command {
	var j joining
	within := 2 * time.Minute
	c := &cobra.Command{
		Use:   "join URL TOKEN [--name NAME]",
		Short: "Make this host a node of a fleet",
		Long: `Makes this host a node of a fleet, with a token of weir hub token create, which
prints the whole command. The host makes its own keys, which never leave it, and
trusts no hub but that of the token. It writes the file that fleet.enroll in
weir.yaml names, by default fleet.json beside weir.yaml, adds that key, and has
the daemon reload.

The command returns when the host filters by a list of the fleet, and fails if
it does not within the time of --wait. Run it again if it has failed: it goes on
where it was, and the hub counts the host once. On a node it changes nothing,
unless the hub lets that in no more, as one that was revoked: it joins anew.`,
		Example: `  weir join https://hub.example.net:4223 1f0c22aa.kPz...
  weir join hub.example.net 1f0c22aa.kPz... --name edge-1`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError{errors.New("want the URL of a hub, and a token")}
			}
			return nil
		},
	}
	c.Flags().StringVar(&j.name, "name", "", "`name` of the node (default the host's)")
	c.Flags().StringVarP(&j.file, "config", "c", configFile, "`file` with the daemon's configuration")
	durationFlag(c.Flags(), &within, "wait", within, "`time` until the host filters by a list of the fleet")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		if j.hub, err = enrollment.JoinURL(args[0]); err == nil {
			j.token, err = enrollment.ParseToken(args[1])
		}
		if err == nil && j.name != "" {
			err = enrollment.CheckName(j.name)
		}
		if err != nil {
			return usageError{err}
		}
		ctx, cancel := context.WithTimeout(c.Context(), within)
		defer cancel()
		j.says = c.ErrOrStderr()
		j.denied = func(ctx context.Context) bool { return denied(ctx, dial(c, string(j.conf.API.Socket))) }
		done, err := j.become(ctx, func() *client.Client { return dial(c, string(j.conf.API.Socket)) })
		if err != nil {
			return err
		}
		if *asJSON {
			return terminal.PrintJSON(c.OutOrStdout(), done)
		}
		text := "this host is node " + done.Node
		if done.Already {
			text += " already, nothing has changed"
		}
		fmt.Fprintf(c.OutOrStdout(), "%s: it filters by %s\n", text, strings.Join(done.Lists, ", "))
		if !done.Connected {
			fmt.Fprintln(c.OutOrStdout(), "it is not connected to the hub now: weir status says why")
		}
		if done.Monitor {
			fmt.Fprintln(c.OutOrStdout(), "in monitor mode it drops nothing: set monitor: false in weir.yaml, and weir reload")
		}
		return nil
	}
	return c
}

// become makes the host a node, and waits until it filters by a list of the fleet. A node that the hub turns out to let
// in no more meanwhile joins anew.
func (j *joining) become(ctx context.Context, dial func() *client.Client) (done joined, err error) {
	for {
		n, already, err := j.join(ctx)
		if err != nil {
			return done, err
		}
		done = joined{Node: n.Name, anew: !already}
		of := dial()
		s, err := started(ctx, of)
		if err == nil && (s.Fleet == nil || done.anew) {
			if _, err = of.Reload(ctx); err != nil {
				err = fmt.Errorf("this host is node %s, but weir does not follow the fleet yet: %w", n.Name, err)
			}
		} else if err == nil {
			done.Already = already
		}
		if err == nil {
			err = done.follows(ctx, of)
		}
		if !errors.Is(err, errDenied) {
			return done, err
		}
	}
}

// errDenied means that the hub lets the host in no more.
var errDenied = errors.New("the hub lets this host in no more")

// started returns the status of the daemon, once that has started.
func started(ctx context.Context, of *client.Client) (*api.Status, error) {
	for {
		s, err := of.Status(ctx)
		if _, starting := errors.AsType[*api.StartingError](err); !starting || ctx.Err() != nil {
			return s, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(joinLook):
		}
	}
}

// denied reports whether the hub lets the host in no more, also by the file that it has now.
func denied(ctx context.Context, of *client.Client) bool {
	s, err := started(ctx, of)
	if err != nil || s.Fleet == nil || !s.Fleet.Denied {
		return false
	}
	for _, err = of.Reload(ctx); err == nil && ctx.Err() == nil; {
		if s, err = of.Status(ctx); err == nil && (s.Fleet == nil || s.Fleet.Connected || s.Fleet.Denied) {
			return s.Fleet != nil && s.Fleet.Denied
		}
		select {
		case <-ctx.Done():
		case <-time.After(joinLook):
		}
	}
	return true
}

// follows waits until the host filters by a list of the fleet.
func (d *joined) follows(ctx context.Context, of *client.Client) error {
	for {
		why := "it has no list yet"
		s, err := of.Status(ctx)
		var lists *api.Lists
		if err == nil {
			lists, err = of.Lists(ctx)
		}
		switch {
		case err != nil:
			why = err.Error()
		case s.Fleet == nil:
			why = "the daemon reads another configuration, without fleet"
		case d.Already && s.Fleet.Denied:
			return errDenied
		case s.Fleet.Problem != "":
			why = s.Fleet.Problem
		case d.anew && !s.Fleet.Connected:
			why = "it is not connected to the hub yet"
		case !slices.ContainsFunc(s.Interfaces, func(i api.InterfaceStatus) bool { return i.State == api.Filtered || i.State == api.Unpinned }):
			why = "it filters no interface"
		default:
			d.Monitor, d.Connected = s.Monitor, s.Fleet.Connected
			for _, l := range lists.Lists {
				if strings.HasPrefix(l.Name, config.FleetPrefix) && slices.ContainsFunc(l.Feeds, func(f api.FeedSource) bool {
					return f.Version != "" && f.Version != new(api.Place).String() && f.Failure == ""
				}) {
					d.Lists = append(d.Lists, l.Name)
				}
			}
			if len(d.Lists) > 0 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("this host is node %s, but filters by no list of the fleet yet: %s", d.Node, why)
		case <-time.After(joinLook):
		}
	}
}

// join makes the host a node, and writes its files, as far as that was not done before.
func (j *joining) join(ctx context.Context) (n enrollment.Node, already bool, err error) {
	if j.conf, err = config.Load(j.file); err != nil {
		return n, false, err
	}
	path, err := filepath.Abs(j.file)
	if err != nil {
		return n, false, err
	}
	dir := filepath.Dir(path)
	j.enroll = cmp.Or(string(j.conf.Fleet.Enroll), filepath.Join(dir, "fleet.json"))
	unlock, err := lockDirectory(filepath.Dir(j.enroll))
	if err != nil {
		return n, false, err
	}
	defer unlock()
	switch n, err = enrollment.Read(j.enroll); {
	case errors.Is(err, fs.ErrNotExist):
		n, err = j.ask(ctx)
	case err == nil && !n.IsOf(j.token):
		err = fmt.Errorf("this host is node %s of another fleet: to leave that, take fleet out of %s, restart weir, and remove %s", n.Name, j.file, j.enroll)
	case err == nil && j.name != "" && j.name != n.Name:
		err = fmt.Errorf("this host is node %s already: nothing has changed", n.Name)
	case err == nil && j.denied(ctx):
		j.name = n.Name
		n, err = j.ask(ctx)
	default:
		already = true
	}
	if err == nil && !j.conf.Fleet.On() {
		already, err = false, j.configure(path)
	}
	return n, already, err
}

// pending are the keys of a host that has asked, and has no answer yet: the hub knows it by them.
type pending struct {
	Node string `json:"node"`
	enrollment.Keys
}

// ask has the hub let the host join, and writes its file.
func (j *joining) ask(ctx context.Context) (n enrollment.Node, err error) {
	if j.name == "" {
		if j.name, err = ownName(); err != nil {
			return n, err
		}
	}
	path := j.enroll + ".keys"
	var p pending
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return n, err
	}
	if err != nil || json.Unmarshal(text, &p) != nil || p.Node != j.name {
		p = pending{}
	}
	for {
		fresh := p.Seed == ""
		if fresh {
			p.Node = j.name
			if p.Keys, err = enrollment.NewKeys(); err == nil {
				text, err = json.Marshal(p)
			}
			if err == nil {
				err = durable.WriteFile(path, append(text, '\n'))
			}
			if err != nil {
				return n, err
			}
		}
		n, err = enrollment.Join(ctx, j.hub, j.token, p.Keys, j.name, j.again())
		if why, refused := errors.AsType[enrollment.Refused](err); !refused || !why.Keys || fresh {
			break
		}
		p = pending{} // the keys are revoked
	}
	if err != nil {
		return n, err
	}
	if text, err = n.Marshal(); err == nil {
		err = writeAs(j.enroll, text, ofDirectory(j.enroll))
	}
	if err == nil {
		err = durable.Remove(path)
	}
	return n, err
}

// again says why the hub is asked again, once for each reason.
func (j *joining) again() func(error) {
	last := ""
	return func(err error) {
		if text := err.Error(); text != last {
			last = text
			fmt.Fprintf(j.says, "weir: trying again: %s\n", text)
		}
	}
}

// configure adds fleet to the configuration of the daemon.
func (j *joining) configure(path string) error {
	line := fmt.Sprintf("fleet: {enroll: %s}", j.enroll)
	text, err := os.ReadFile(path)
	var info os.FileInfo
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err == nil {
		info, err = os.Stat(path)
	}
	if err == nil {
		text = append(text, "\n# Added by weir join.\n"+line+"\n"...)
		next, wrong := config.Parse(path, text)
		if err = wrong; err == nil && slices.ContainsFunc(config.Diff(j.conf, next), func(d string) bool { return !strings.HasPrefix(d, "fleet") }) {
			err = errors.New("it would change more than fleet")
		}
		if err == nil {
			err = writeAs(path, text, info)
		}
	}
	if err != nil {
		return fmt.Errorf("the hub has let this host join, but %s cannot be edited: %w. Add this line, and run weir join again:\n%s", path, err, line)
	}
	return nil
}

// ofDirectory returns who owns a new file with secrets, in its directory: root, and the group of the directory
// may read it.
func ofDirectory(path string) fs.FileInfo {
	info, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return nil // writing says why
	}
	return secretOf{info}
}

// secretOf is the owner of a directory as that of a file in it.
type secretOf struct{ fs.FileInfo }

func (s secretOf) Mode() fs.FileMode {
	if of, ok := s.Sys().(*syscall.Stat_t); ok && of.Gid != 0 && s.FileInfo.Mode()&0o050 != 0 {
		return 0o640
	}
	return 0o600
}

// writeAs replaces a file by a text, with the mode and owner of another one.
func writeAs(path string, text []byte, as fs.FileInfo) error {
	next := path + ".new"
	if err := durable.WriteFile(next, text); err != nil {
		return err
	}
	if as != nil {
		err := os.Chmod(next, as.Mode().Perm())
		if of, ok := as.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
			err = cmp.Or(err, os.Lchown(next, int(of.Uid), int(of.Gid)))
		}
		if err != nil {
			return errors.Join(err, os.Remove(next))
		}
	}
	return durable.Rename(next, path)
}

// lockDirectory keeps other processes of weir join out.
func lockDirectory(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("weir join is under way already: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// ownName returns the host's name, as that of a node.
func ownName() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", err
	}
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	name := strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '-'
	}, host), "-_")
	if err := enrollment.CheckName(name); err != nil {
		return "", fmt.Errorf("the host's name is none for a node, so --name is missing: %w", err)
	}
	return name, nil
}
