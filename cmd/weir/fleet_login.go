package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"

	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/api/client"
	"weir/control/durable"
	"weir/control/fleet/enrollment"
)

// hubVariable names the hub that weir fleet asks where --hub is not given.
const hubVariable = "WEIR_HUB"

// login is a file of a user with what lets the user in at a hub.
type login struct {
	URL   string `json:"url"`
	Token string `json:"token"`
}

var loginName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$`)

// loginPath returns the file of a login.
func loginPath(name string) (string, error) {
	if !loginName.MatchString(name) {
		return "", fmt.Errorf("%q is no name of a hub: want letters, digits, dots, - and _", name)
	}
	dir, err := os.UserConfigDir()
	return filepath.Join(dir, "weir", "hubs", name+".json"), err
}

// dial returns a client of the hub.
func (l login) dial() (*client.Client, error) {
	u, err := url.Parse(l.URL)
	if err != nil {
		return nil, err
	}
	t, err := enrollment.ParseToken(l.Token)
	if err != nil {
		return nil, err
	}
	return client.DialOperator(l.URL, l.Token, t.TLS(u.Hostname())), nil
}

// loggedIn returns a client of the hub of a login.
func loggedIn(name string) (*client.Client, error) {
	path, err := loginPath(name)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no login for hub %s: weir fleet login URL TOKEN --name %[1]s, with a token of weir hub operator create", name)
	}
	var l login
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l.dial()
}

// connectHub returns a client of the hub that --hub or the environment names, or of the one on this host.
func connectHub(c *cobra.Command, socket string) *client.Client {
	name := os.Getenv(hubVariable)
	if f := c.Flags().Lookup("hub"); f != nil {
		name = cmp.Or(f.Value.String(), name)
	}
	if name == "" || c.Flags().Changed("socket") {
		return client.DialHub(socket)
	}
	of, err := loggedIn(name)
	if err != nil {
		return client.Failing(err)
	}
	return of
}

func newFleetLogin() *cobra.Command {
	name := ""
	c := &cobra.Command{
		Use:   "login URL TOKEN [--name NAME]",
		Short: "Let weir fleet on this host ask a hub elsewhere",
		Long: `Asks a hub with a token of weir hub operator create, which prints the whole
command, and keeps both in a file of yours, weir/hubs/NAME.json in the directory
of your settings. It trusts no hub but that of the token. Then --hub NAME, or
WEIR_HUB=NAME in the environment, has weir fleet ask that hub.`,
		Example: `  weir fleet login https://hub.example.net:4223 1f0c22aa.kPz... --name paris
  weir fleet block --hub paris 192.0.2.1`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError{errors.New("want the URL of a hub, and a token")}
			}
			return nil
		},
	}
	c.Flags().StringVar(&name, "name", "", "`name` of the login (default the hub's host)")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		at, err := enrollment.JoinURL(args[0])
		if err == nil {
			_, err = enrollment.ParseToken(args[1])
		}
		if err != nil {
			return usageError{err}
		}
		u, err := url.Parse(at)
		if err != nil {
			return err
		}
		name = cmp.Or(name, u.Hostname())
		path, err := loginPath(name)
		if err != nil {
			return usageError{err}
		}
		l := login{at, args[1]}
		of, err := l.dial()
		if err == nil {
			_, err = of.Fleet(c.Context())
		}
		if err != nil {
			return err
		}
		text, err := json.MarshalIndent(l, "", "  ")
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o700)
		}
		if err == nil {
			err = durable.WriteFile(path, append(text, '\n'))
		}
		if err != nil {
			return err
		}
		if *asJSON {
			return terminal.PrintJSON(c.OutOrStdout(), map[string]string{"hub": name, "url": at, "file": path})
		}
		fmt.Fprintf(c.OutOrStdout(), "the hub at %s answers: weir fleet status --hub %s\n", at, name)
		return nil
	}
	return c
}
