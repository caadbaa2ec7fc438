package main

import (
	"github.com/spf13/cobra"

	"weir/cmd/share"
)

// newShare is for those who install weir, not for those who use it.
func newShare() *cobra.Command {
	return &cobra.Command{
		Use:    "share DIRECTORY",
		Hidden: true,
		Short:  "Write the man pages, and what shells complete commands with",
		Long: `Writes the man pages, and what bash, zsh and fish complete commands with, to
where they stand below /usr/share or /usr/local/share.`,
		Example: "  weir share dist/share",
		Args:    theArgs("DIRECTORY"),
		RunE: func(_ *cobra.Command, args []string) error {
			return share.Program{Root: newRoot(), Version: version, Files: manFiles, SeeAlso: manSeeAlso}.Write(args[0])
		},
	}
}

const manSeeAlso = `\fBweir.yaml\fR(5), \fBweir\-lists\fR(5)`

// manFiles are the files of weir's man page.
const manFiles = `.TP
.I /etc/weir/weir.yaml
The configuration of the service.
.TP
.I /var/lib/weir
State that survives a restart: the last good contents of feeds, and manual
entries and multicast groups.
.TP
.I /run/weir/weir.sock
The API of the running daemon.
.TP
.I /sys/fs/bpf/weir
Pins: the attached programs, which filter even if no process of weir runs.
`
