package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"weir/cmd/terminal"
)

// version and commit are set by the linker; see the Makefile.
var (
	version = "dev"
	commit  = ""
)

// build identifies a binary. It is the JSON of weir version.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"` // "unknown" for a build from outside a repository
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// thisBuild describes the running binary. A commit that the linker did not set is
// taken from what the go command stamps into the binary.
func thisBuild() build {
	b := build{Version: version, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				b.Commit = cmp.Or(b.Commit, s.Value)
			}
		}
	}
	b.Commit = cmp.Or(b.Commit, "unknown")
	return b
}

func newVersion() *cobra.Command {
	c := &cobra.Command{
		Use:   "version",
		Short: "Print weir's version",
		Long: `Prints the version, the commit that weir was built from, the version of Go that
built it, and the platform: what a bug report should begin with.`,
		Example: `  weir version
  weir version --json`,
		Args: noArgs,
	}
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		b, out := thisBuild(), c.OutOrStdout()
		if *asJSON {
			return terminal.PrintJSON(out, b)
		}
		_, err := fmt.Fprintf(out, "weir %s\ncommit   %s\ngo       %s\nplatform %s\n", b.Version, b.Commit, b.Go, b.Platform)
		return err
	}
	return c
}
