package main

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir/control/attach"
	"weir/control/config"
	"weir/control/daemon"
	"weir/control/engine"
	"weir/control/feed"
	"weir/control/quantity"
	"weir/control/ruleset"
	"weir/control/stage/tracker"
)

// configFlags are flags that say what a configuration says: with --config the
// file, otherwise the flags. They are a [config.Reader].
type configFlags struct {
	flags    *pflag.FlagSet
	withFile []string // flags that go with --config

	file   string
	config config.Config // what the flags say, but for the following

	block, allow []string
	direction    engine.Direction
	lenient      bool
	ignorePorts  bool
	maxBad       quantity.Share
	wide         bool
	antiLockout  bool
	noPrivate    bool
	ifaces       []string
	netns        string
	xdp          attach.Hook
	hook         config.Hook
	attach       config.Attach
	learn        int
}

// newConfigFlags adds the flags that name lists, say how to read them, and how to
// filter by them. withFile are flags of the command that go with --config.
func newConfigFlags(c *cobra.Command, withFile ...string) *configFlags {
	v := &configFlags{flags: c.Flags(), withFile: append(withFile, "config"), config: *config.Default()}
	conf := &v.config
	conf.Keep, conf.StateDir = false, "" // what flags say keeps nothing
	v.maxBad = defaultMaxBad()

	f := v.flags
	f.StringVarP(&v.file, "config", "c", "", "`file` with the configuration, weir.yaml")
	f.StringArrayVar(&v.block, "block", nil, "`file` of a list to block, - for standard input; repeat for more; "+formatHint)
	f.StringArrayVar(&v.allow, "allow", nil, "`file` of a list whose entries pass, whatever blocks them; repeat for more")
	f.TextVar(&v.direction, "direction", v.direction,
		"`side` of packets that addresses and prefixes in the lists are matched with: src, dst or both")
	f.BoolVar(&v.lenient, "lenient", false, "mask host bits in prefixes instead of calling the line bad")
	f.BoolVar(&v.ignorePorts, "ignore-ports", false, "read 192.0.2.1:443 as the address alone instead of calling the line bad")
	f.TextVar(&v.maxBad, "max-bad", v.maxBad, "`share` of bad lines above which a file is refused")
	f.BoolVar(&v.wide, "wide", false, "let a block list cover more than a quarter of IPv4 or IPv6")
	f.BoolVar(&v.antiLockout, "anti-lockout", true, "leave out of lists what would cut off this host")
	f.BoolVar(&v.noPrivate, "exclude-private", false, "leave out of lists private, loopback and similar networks")
	f.TextVar(&conf.Mode, "mode", conf.Mode, "`mode`: exact, or approx, which reads less memory for a packet and drops a planned share of unlisted packets")
	f.Float64Var(&conf.BitsPerEntry, "bits-per-entry", conf.BitsPerEntry, "`bits` per entry of the filter in approximate mode")
	f.BoolVar(&conf.Monitor, "monitor", false, "count what would be dropped, and drop nothing")
	f.TextVar(&conf.Malformed, "malformed", conf.Malformed, "`action` on malformed packets: pass or drop")
	f.TextVar(&conf.NotIP, "not-ip", conf.NotIP, "`action` on what is neither IP nor ARP nor of the link itself: pass or drop")
	f.BoolVar((*bool)(&conf.Inner), "inner", false, "match the headers that GRE, IP in IP, VXLAN and GTP-U carry, too")
	f.BoolVar(&conf.Failsafe.DHCPServer, "dhcp-server", false, "this host serves or relays DHCP: let pass what clients send, too")
	listFlag(f, "failsafe-port", "destination `port` that always passes, as in tcp/22 or 22/tcp; repeat for more, up to 8",
		appendText(&conf.Failsafe.Ports))
	listFlag(f, "failsafe", "`prefix` of sources that always pass; repeat for more, up to 8 of each family",
		appendText(&conf.Failsafe.Prefixes))
	listFlag(f, "failsafe-icmp", "`kind` of ICMP that always passes: errors, echo-request, echo-reply; repeat for more",
		appendText(&conf.Failsafe.ICMP))
	choices(c, "direction", "src", "dst", "both")
	choices(c, "mode", "exact", "approx")
	choices(c, "malformed", "pass", "drop")
	choices(c, "not-ip", "pass", "drop")
	return v
}

// defaultMaxBad is the share of bad lines that a list has unless it says another.
func defaultMaxBad() quantity.Share {
	var l config.List
	l.SetDefaults()
	return l.MaxBad
}

// attachFlags adds the flags for interfaces, trackers, learning and the API.
func (v *configFlags) attachFlags(c *cobra.Command) {
	f, conf := v.flags, &v.config
	f.StringSliceVar(&v.ifaces, "iface", nil, "`interfaces` to filter on, joined by commas; globs also cover interfaces created later")
	f.TextVar(&v.xdp, "xdp", v.xdp, "`place` where the program runs: native, or generic (slower, any driver)")
	choices(c, "xdp", "native", "generic")
	f.Func("hook", "`hook` where packets are filtered: xdp (default), or tc for interfaces without Ethernet headers or without XDP",
		func(s string) error { return v.hook.UnmarshalText([]byte(s)) })
	choices(c, "hook", "xdp", "tc")
	f.Func("attach", "`way` to attach at hook xdp: link (default), or dispatcher, libxdp's, beside other XDP programs",
		func(s string) error { return v.attach.UnmarshalText([]byte(s)) })
	choices(c, "attach", "link", "dispatcher")
	f.BoolVar(&conf.Keep, "keep", false, "leave the program attached when stopped")
	f.Func("track", "`tracker` of heavy hitters, as in key=src,threshold=50kpps,action=limit; repeat for up to 4; weir run --help has all options", func(s string) error {
		spec, err := tracker.Parse(s)
		conf.Trackers = append(conf.Trackers, spec)
		return err
	})
	f.IntVar(&v.learn, "learn", 0, "hot `elements` that get additional bits, so that they are not mistaken for listed ones, in approximate mode; "+
		"0: none (default "+fmt.Sprint(conf.Learning.Elements)+")")
	f.StringVar((*string)(&conf.API.Socket), "socket", string(conf.API.Socket), "`path` of the socket that commands use; empty: none")
	f.TextVar(&conf.Metrics.Listen, "metrics", conf.Metrics.Listen, "`address` and port on which Prometheus may scrape /metrics, such as 127.0.0.1:9477; "+
		"without it, the socket alone serves them")
	placeFlags(f, &v.netns, &conf.Pins)
}

// given reports whether the flags name a configuration, or lists.
func (v *configFlags) given() bool { return v.file != "" || len(v.block)+len(v.allow) > 0 }

// check checks the flags themselves.
func (v *configFlags) check() error {
	if v.file == "" {
		return nil
	}
	var conflict string
	v.flags.Visit(func(f *pflag.Flag) {
		if !slices.Contains(v.withFile, f.Name) {
			conflict = f.Name
		}
	})
	if conflict != "" {
		return usageError{fmt.Errorf("--%s does not go with --config: say it in the file", conflict)}
	}
	return nil
}

// Read returns the configuration of the file, or of the flags. What the flags say
// keeps nothing, and requires its interfaces and lists.
func (v *configFlags) Read() (*config.Config, error) {
	if v.file != "" {
		return config.Load(v.file)
	}
	c, err := v.said()
	if err != nil {
		return nil, err
	}
	return c, c.Validate()
}

// said returns what the flags say.
func (v *configFlags) said() (*config.Config, error) {
	c := v.config
	if v.wide || c.Monitor { // what is monitored blocks nothing
		c.MaxCoverage = 1
	}
	if c.API.Socket != "" {
		path, err := filepath.Abs(string(c.API.Socket))
		if err != nil {
			return nil, err
		}
		c.API.Socket = config.Path(path)
	}
	if v.flags.Changed("learn") {
		c.Learning.Elements = quantity.Count(v.learn)
	}
	for _, t := range targets(v.ifaces, v.netns) {
		c.Interfaces = append(c.Interfaces, config.Interface{Name: t.Iface, Netns: t.Netns, Hook: v.hook, XDP: v.xdp, Attach: v.attach, Required: true})
	}
	for _, kind := range []struct {
		files  []string
		action config.Action
	}{{v.block, config.Block}, {v.allow, config.Allow}} {
		for _, given := range kind.files {
			file, format, err := cutFormat(given)
			if err != nil {
				return nil, err
			}
			l, err := c.AddFile(file, kind.action)
			if err != nil {
				return nil, err
			}
			l.Format, l.Direction, l.Lenient, l.IgnorePorts, l.MaxBad = format, v.direction, v.lenient, v.ignorePorts, v.maxBad
			l.AntiLockout, l.ExcludePrivate = v.antiLockout, v.noPrivate
		}
	}
	return &c, nil
}

const formatHint = "FILE,format=csv,column=2 is in another format, with the options that it has in weir.yaml"

// cutFormat returns the file and the format of FILE or FILE,format=FORMAT.
func cutFormat(given string) (file string, f feed.Format, err error) {
	file, format, ok := strings.Cut(given, ",format=")
	if ok {
		if f, err = feed.ParseFormat(format); err != nil {
			err = usageError{fmt.Errorf("%s: %w", given, err)}
		}
	}
	return file, f, err
}

// offline is Read for commands that attach to no interface.
func (v *configFlags) offline() (*config.Config, error) {
	if v.file != "" {
		return config.Load(v.file)
	}
	c, err := v.said()
	if err != nil {
		return nil, err
	}
	c.Interfaces = []config.Interface{{Name: "*"}}
	for i := range c.Lists { // whatever this host is
		c.Lists[i].AntiLockout = false
	}
	return c, c.Validate()
}

// prepare reads the lists, and prints what is wrong with them.
func (v *configFlags) prepare(c *cobra.Command, out *console) (*ruleset.Ruleset, error) {
	if err := v.check(); err != nil {
		return nil, err
	}
	conf, err := v.offline()
	if err != nil {
		return nil, err
	}
	progress := new(feed.Progress)
	stop := showProgress(out, progress)
	p, err := daemon.Prepare(c.Context(), conf, slog.New(slog.NewTextHandler(out, nil)), progress)
	stop()
	if err != nil {
		return nil, err
	}
	for _, problem := range p.Problems() {
		fmt.Fprintln(out, "weir:", problem.Err)
	}
	for _, w := range p.Warnings() {
		fmt.Fprintln(out, "weir:", w)
	}
	return p, nil
}

// placeFlags are the flags that say where weir is attached and pinned.
func placeFlags(f *pflag.FlagSet, netns *string, pins *attach.Pins) {
	f.StringVar(netns, "netns", "", "network `namespace` of the interfaces: a name as in ip netns, or a path")
	pinsFlag(f, pins)
}

func pinsFlag(f *pflag.FlagSet, pins *attach.Pins) {
	f.StringVar((*string)(pins), "pins", string(attach.DefaultPins), "`directory` of pins, on a BPF file system")
}

// targets returns the interfaces of a namespace, each once.
func targets(ifaces []string, netns string) []attach.Interface {
	var all []attach.Interface
	for _, name := range ifaces {
		t := attach.Interface{Netns: netns, Iface: strings.TrimSpace(name)}
		if t.Iface != "" && !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return all
}
