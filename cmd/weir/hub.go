package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"weir/cmd/share"
)

// hubCommand is a program of its own, so that nodes do not carry the NATS server.
const hubCommand = "weir-hub"

func newHub() *cobra.Command {
	return &cobra.Command{
		Use:   "hub COMMAND",
		Short: "Publish lists to a fleet of nodes",
		Long: `Runs weir-hub, which has the hub's commands: it makes the keys of a fleet,
enrolls and revokes nodes, and publishes lists to them. It is a program of its
own, beside weir or in the PATH. weir hub --help shows its commands.`,
		Example: `  weir hub init /etc/weir-hub/keys
  weir hub run --config /etc/weir-hub/hub.yaml
  weir hub enroll edge-1 --label paris >edge-1.json`,
		Annotations:        map[string]string{share.NoPage: "weir-hub(8) describes weir-hub"},
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			path, err := findHub()
			switch {
			case err != nil && (len(args) == 0 || slices.Contains([]string{"-h", "--help"}, args[0])):
				return c.Help()
			case err != nil:
				return err
			}
			return fmt.Errorf("%s: %w", path, unix.Exec(path, append([]string{hubCommand}, args...), os.Environ()))
		},
	}
}

// findHub returns the path of weir-hub.
func findHub() (string, error) {
	if own, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(own), hubCommand)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return beside, nil
		}
	}
	path, err := exec.LookPath(hubCommand)
	if err != nil {
		return "", errors.New("weir-hub is neither beside weir nor in the PATH: install the package weir-hub")
	}
	return path, nil
}
