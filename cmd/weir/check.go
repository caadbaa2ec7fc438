package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/config"
	"weir/control/daemon"
	"weir/control/doctor"
	"weir/control/feed"
)

func newCheck() *cobra.Command {
	var v *configFlags
	c := &cobra.Command{
		Use:   "check [CONFIG]",
		Short: "Check a configuration and its lists",
		Long: `Does everything that weir run does, up to attaching: it reads the configuration,
its files and directories, and the saved contents of other sources, and builds
the filter in its own memory. What weir check accepts, weir run starts with,
provided that the interfaces exist and new fetches succeed. It changes nothing,
contacts no server, and needs neither a running daemon nor privileges, other
than to read these files and state_dir. A source that cannot be read, or is
refused, is an error, although weir run starts without it unless its list is
required. What this host lacks, as far as that can be known without attaching,
is a warning with the line that mends it; weir doctor says more.

Errors in the configuration have file, line and column; a source that fails has
the line of its list. --print shows the configuration with its defaults, as
YAML; secrets, such as headers for a feed, are printed in clear.`,
		Example: `  weir check /etc/weir/weir.yaml
  weir check --print weir.yaml
  weir check --iface eth0 --block feed.txt --print
  weir check --json weir.yaml | jq -r '.errors[].path'`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return theArgs("CONFIG")(c, args)
		},
	}
	v = newConfigFlags(c, "print", "json")
	v.attachFlags(c)
	whole := c.Flags().Bool("print", false, "print the configuration with its defaults")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case *whole && *asJSON:
			return usageError{errors.New("--print writes YAML: without --json")}
		case len(args) > 0 && v.file != "":
			return usageError{errors.New("CONFIG and --config exclude each other")}
		case len(args) > 0:
			v.file = args[0]
		case v.file == "" && len(v.ifaces) == 0:
			return usageError{errors.New("CONFIG is missing")}
		}
		if err := v.check(); err != nil {
			return err
		}
		name := cmp.Or(v.file, "command line")
		conf, err := v.Read()
		var wrong config.Errors // none if it cannot be read
		errors.As(err, &wrong)
		var r *checked
		if err == nil {
			r, err = checkLists(c, conf, config.File(v.file))
		}
		out := c.OutOrStdout()
		switch {
		case *asJSON:
			if bad := terminal.PrintJSON(out, r.json(name, wrong, err)); bad != nil {
				return bad
			}
		case err == nil:
			if *whole {
				if err := conf.Print(out); err != nil {
					return err
				}
			}
			r.print(c.ErrOrStderr())
			if len(r.problems) == 0 && !*whole {
				fmt.Fprintf(out, "%s: no errors; interfaces: %s, lists: %d%s, entries: %d%s, trackers: %d, scans: %d%s\n",
					name, interfacesOf(conf), len(conf.Lists), r.unchecked(), r.entries, r.unsourced(), len(conf.Trackers), len(conf.Scans), memoryOf(conf))
			}
		case len(wrong) > 0:
			for _, e := range wrong {
				fmt.Fprintln(c.ErrOrStderr(), e)
			}
		}
		if len(wrong) > 0 {
			return fmt.Errorf("%s: errors: %d", name, len(wrong))
		}
		if err == nil && len(r.problems) > 0 {
			err = fmt.Errorf("%s: sources that could not be read, or are refused: %d", name, len(r.problems))
		}
		return err
	}
	return c
}

// unchecked notes the sources that were not checked.
func (r *checked) unchecked() string {
	if r.unread == 0 {
		return ""
	}
	return " (" + plural(r.unread, "source", "sources") + " not checked)"
}

// unsourced notes how many entries no source has.
func (r *checked) unsourced() string {
	if r.manual == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s in no source)", humanize.Comma(int64(r.manual)))
}

// checked describes a configuration's lists.
type checked struct {
	entries  int
	manual   int // of these, those in no source
	findings []doctor.Finding
	warnings []string
	problems config.Errors // why lists do not have what their sources contain
	unread   int           // sources of which nothing is known
}

// print writes a line for each warning and problem.
func (r *checked) print(out io.Writer) {
	for _, w := range r.warnings {
		fmt.Fprintln(out, "warning:", w)
	}
	for _, p := range r.problems {
		fmt.Fprintln(out, "error:", p)
	}
}

// checkLists builds the filter of a configuration on the heap.
func checkLists(c *cobra.Command, conf *config.Config, file config.File) (*checked, error) {
	out := newConsole(c.OutOrStdout(), c.ErrOrStderr())
	progress := new(feed.Progress)
	stop := showProgress(out, progress)
	defer stop()
	p, err := daemon.Prepare(c.Context(), conf, slog.New(slog.NewTextHandler(out, nil)), progress)
	if err != nil {
		return nil, err
	}
	e, err := p.Build()
	if err != nil {
		return nil, err
	}
	findings := doctor.Examine(c.Context(), doctor.Configured(conf))
	r := &checked{entries: p.Entries(), manual: p.Manual(), findings: findings, warnings: slices.Concat(warningsOf(findings), p.Advice(), p.Warnings())}
	if problems := p.Problems(); len(problems) > 0 {
		place := file.Places()
		for _, problem := range problems {
			text := strings.TrimPrefix(problem.Err.Error(), "list "+problem.List+": ") // which the path says
			r.problems = append(r.problems, place(config.Join("lists", problem.List), errors.New(text)))
		}
	}
	for _, n := range p.Unread() {
		r.unread++
		r.warnings = append(r.warnings, fmt.Sprintf("list %s: %s: not checked, since nothing of it is saved, and weir check fetches nothing", n.List, n.Source))
	}
	return r, e.Close()
}

// warningsOf returns what a configuration's user should know of a host: problems, and what
// interfaces could do better.
func warningsOf(all []doctor.Finding) (lines []string) {
	for _, f := range doctor.Group(all) {
		if f.Level == doctor.Problem || f.Level == doctor.Note && f.Interface != "" {
			lines = append(lines, f.String())
		}
	}
	return lines
}

// interfacesOf returns the number of interfaces, and how many are not filtered at XDP.
func interfacesOf(conf *config.Config) string {
	tc := 0
	for _, i := range conf.Interfaces {
		if i.Hook == config.HookTC {
			tc++
		}
	}
	n := strconv.Itoa(len(conf.Interfaces))
	if tc > 0 {
		n += fmt.Sprintf(" (%d at tc)", tc)
	}
	return n
}

// memoryOf returns a note on the memory that a configuration needs in addition to
// its lists: for digests it may be more than there is.
func memoryOf(conf *config.Config) string {
	n := conf.Digest.Memory()
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; digests: %s of memory for each interface", humanize.Bytes(n))
}

// configError is an error of a configuration as it is printed in JSON.
type configError struct {
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Path   string `json:"path"`
	Error  string `json:"error"`
}

func (r *checked) json(file string, wrong config.Errors, err error) any {
	all, warnings, findings := []configError{}, []string{}, []doctor.Finding{}
	if err != nil && len(wrong) == 0 {
		all = append(all, configError{Error: err.Error()})
	}
	if r != nil {
		warnings, findings, wrong = append(warnings, r.warnings...), append(findings, r.findings...), r.problems
	}
	for _, e := range wrong {
		all = append(all, configError{e.Line, e.Column, e.Path, e.Err.Error()})
	}
	return map[string]any{"file": file, "errors": all, "warnings": warnings, "findings": findings}
}
