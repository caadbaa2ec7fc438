package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"weir/cmd/terminal"
	"weir/control/attach"
	"weir/control/config"
	"weir/control/doctor"
)

// serviceConfig is the configuration of the service.
const serviceConfig = "/etc/weir/weir.yaml"

// doctorFlags say what is looked at.
type doctorFlags struct {
	file   string
	ifaces []string
	netns  string
	xdp    attach.Hook
	hook   config.Hook
	pins   attach.Pins
	socket string
}

func newDoctor() *cobra.Command {
	var v doctorFlags
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what is wrong with this host, and how to mend it",
		Long: `Looks at this host and its interfaces: kernel, BPF file system, limits, state
directory, disk and clock; driver, mode, queues, MTU, offloads and other
programs. Each finding is ok, a note or a problem, with the line that mends it:
one to run as root, or one to set in weir.yaml. It changes nothing, needs no
daemon and no configuration, and ends within seconds. As root it sees more.

Without --iface it looks at the interfaces of the configuration, which is
` + serviceConfig + ` unless --config names another, and of the daemon; where
there is neither, at all Ethernet interfaces that are up.

--report also writes a file to attach to a bug report: the findings, what weir
status says, and in what the configuration differs from the defaults. It has
names of lists and interfaces, and no addresses; of URLs only scheme and host.

The exit code is 0 if there is no problem, and 4 if there is one.`,
		Example: `  sudo weir doctor
  sudo weir doctor --iface eth0
  sudo weir doctor --report weir-report.txt
  weir doctor --json | jq -r '.findings[] | select(.level == "problem") | .run // .set'`,
		Args: noArgs,
	}
	f := c.Flags()
	f.StringVarP(&v.file, "config", "c", "", "`file` with the configuration")
	f.StringSliceVar(&v.ifaces, "iface", nil, "`interfaces` to look at, joined by commas; globs match those that there are")
	f.TextVar(&v.xdp, "xdp", v.xdp, "`place` where the program is to run: native or generic")
	choices(c, "xdp", "native", "generic")
	f.Func("hook", "`hook` where packets are to be filtered: xdp (default) or tc", func(s string) error { return v.hook.UnmarshalText([]byte(s)) })
	choices(c, "hook", "xdp", "tc")
	placeFlags(f, &v.netns, &v.pins)
	socketFlag(f, &v.socket)
	report := f.String("report", "", "`file` to write a report to, - for standard output")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *asJSON && *report == "-" {
			return usageError{errors.New("--report - writes text: without --json")}
		}
		if v.netns != "" && len(v.ifaces) == 0 { // it would look elsewhere, and find all well there
			return usageError{errors.New("--netns goes with --iface: name the interfaces in that namespace, or '*' for all")}
		}
		s, err := readStatus(c.Context(), v.socket, v.pins, f.Changed("pins"))
		subject, wrong := v.subject(c, &s)
		findings := slices.Concat(wrong, doctor.Examine(c.Context(), subject))
		var bad error
		if len(doctor.Of(doctor.Problem, findings)) > 0 {
			bad = errProblem
		}
		if *report != "" {
			s.Problems = nil // the findings have them
			text := reportOf(findings, &s, err, subject.Config)
			if *report == "-" {
				_, err := io.WriteString(c.OutOrStdout(), text)
				return cmp.Or(err, bad)
			}
			if err := os.WriteFile(*report, []byte(text), 0o600); err != nil {
				return err
			}
		}
		out := c.OutOrStdout()
		if *asJSON {
			return cmp.Or(terminal.PrintJSON(out, map[string]any{"version": version, "findings": findings}), bad)
		}
		if err := doctor.Print(out, findings); err != nil {
			return err
		}
		fmt.Fprintf(out, "problems: %d, notes: %d\n", len(doctor.Of(doctor.Problem, findings)), len(doctor.Of(doctor.Note, findings)))
		return bad
	}
	return c
}

// adviceOn returns what could lock somebody out with a configuration.
func adviceOn(conf *config.Config) (all []doctor.Finding) {
	drops := slices.ContainsFunc(conf.Lists, func(l config.List) bool { return l.Action == config.Block && l.Enforce })
	for _, advice := range append(conf.Advice(drops), conf.TrackerSections.Advice()...) {
		all = append(all, doctor.Finding{Check: "config", Level: doctor.Note, Text: advice})
	}
	return all
}

// subject says what is to be looked at, and what is wrong with the daemon and the configuration.
func (v *doctorFlags) subject(c *cobra.Command, s *status) (of doctor.Subject, wrong []doctor.Finding) {
	of = doctor.Subject{StateDir: string(config.Default().StateDir)}
	file := cmp.Or(v.file, serviceConfig)
	switch conf, err := config.Load(file); {
	case err == nil:
		of = doctor.Configured(conf)
		wrong = append(wrong, adviceOn(conf)...)
	case v.file == "" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)):
	default:
		wrong = append(wrong, doctor.Finding{
			Check: "config", Level: doctor.Problem, Text: "the configuration is not valid: " + firstLine(err), Run: "weir check " + file,
		})
	}
	if v.file == "" {
		of.StateDir = s.stateDir(of)
	}
	if err := s.unanswered; err != nil {
		level := doctor.Problem
		if errors.Is(err, fs.ErrPermission) { // this user may not ask
			level = doctor.Note
		}
		wrong = append(wrong, doctor.Finding{Check: "daemon", Level: level, Text: firstLine(err)})
	}
	if of.Pins == "" || c.Flags().Changed("pins") || s.Daemon != nil {
		of.Pins = s.Pins
	}
	of.Process = s.Daemon == nil && (s.unanswered == nil || errors.Is(s.unanswered, fs.ErrPermission))
	for _, i := range s.subject().Interfaces {
		at := slices.IndexFunc(of.Interfaces, func(o doctor.Interface) bool { return o.Target == i.Target })
		if at < 0 {
			of.Interfaces = append(of.Interfaces, i)
		} else {
			of.Interfaces[at].Attached = i.Attached
		}
	}
	if len(v.ifaces) == 0 && len(of.Interfaces) > 0 {
		return of, wrong
	}
	names := v.ifaces
	if len(names) == 0 {
		names = []string{"*"}
	}
	given := &config.Config{}
	for _, t := range targets(names, v.netns) {
		given.Interfaces = append(given.Interfaces, config.Interface{Name: t.Iface, Netns: t.Netns, Hook: v.hook, XDP: v.xdp})
	}
	known := of.Interfaces
	of.Interfaces = nil
	for _, i := range doctor.Configured(given).Interfaces {
		at := slices.IndexFunc(known, func(o doctor.Interface) bool { return o.Target == i.Target })
		if at >= 0 && !c.Flags().Changed("xdp") && !c.Flags().Changed("hook") {
			i = known[at] // as it is filtered
		}
		if len(v.ifaces) == 0 && !doctor.Likely(i) {
			continue
		}
		of.Interfaces = append(of.Interfaces, i)
	}
	return of, wrong
}

// stateDir returns where a daemon that runs saves its state, or where the configuration that was
// found says.
func (s *status) stateDir(of doctor.Subject) string {
	at := s.running()
	if at < 0 || s.Attachments[at].StateDir == "" && of.Config != nil { // it may be older than the field
		return of.StateDir
	}
	return s.Attachments[at].StateDir
}

// firstLine returns the first line of an error, and how many others there are.
func firstLine(err error) string {
	first, more, _ := strings.Cut(err.Error(), "\n")
	if more != "" {
		first += fmt.Sprintf(" (and %d more)", strings.Count(more, "\n")+1)
	}
	return first
}

// reportOf is a report for those who are asked for help: without addresses and secrets.
func reportOf(findings []doctor.Finding, s *status, unread error, conf *config.Config) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "weir doctor, %s\nweir %s, %s/%s, %s\n%s, %d CPUs\n", time.Now().UTC().Format(time.RFC3339),
		version, runtime.GOOS, runtime.GOARCH, runtime.Version(), kernelName(), runtime.NumCPU())
	if pages, free := memory(); pages > 0 {
		fmt.Fprintf(&b, "%d MiB of memory, %d MiB free\n", pages>>20, free>>20)
	}
	fmt.Fprintln(&b, "\nFindings")
	_ = doctor.Print(&b, findings) // a buffer takes all
	fmt.Fprintln(&b, "\nStatus")
	if unread != nil {
		fmt.Fprintln(&b, "not everything could be read:", unread)
	}
	s.print(&b, true)
	fmt.Fprintln(&b, "\nConfiguration, beside the defaults")
	if conf == nil {
		fmt.Fprintln(&b, "none is known")
	} else {
		for _, line := range configured(conf) {
			fmt.Fprintln(&b, line)
		}
	}
	return doctor.Scrub(b.String())
}

// configured returns in what a configuration differs from the defaults, a line each, without
// secrets. Lists and interfaces are compared with empty ones of their names.
func configured(conf *config.Config) []string {
	before := config.Default()
	for _, i := range conf.Interfaces {
		before.Interfaces = append(before.Interfaces, config.Interface{Name: i.Name, Netns: i.Netns})
	}
	for _, l := range conf.Lists {
		empty := config.List{Name: l.Name}
		empty.SetDefaults()
		before.Lists = append(before.Lists, empty)
	}
	lines := config.Diff(before, conf)
	for _, i := range conf.Interfaces {
		lines = append(lines, "interfaces: "+i.Label())
	}
	for _, l := range conf.Lists {
		lines = append(lines, fmt.Sprintf("lists: %s (sources: %d)", l.Name, len(l.Sources)))
	}
	return lines
}

func kernelName() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "an unknown kernel"
	}
	return "Linux " + unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Version[:])
}

func memory() (total, free uint64) {
	var i unix.Sysinfo_t
	if err := unix.Sysinfo(&i); err != nil {
		return 0, 0
	}
	return i.Totalram * uint64(i.Unit), i.Freeram * uint64(i.Unit)
}
