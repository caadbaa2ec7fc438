package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/config"
	"weir/control/fleet/authority"
	"weir/control/fleet/hub"
)

func newCheck() *cobra.Command {
	c := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a configuration",
		Long: `Checks a configuration, by default ` + defaultConfig + `, as weir-hub run and
a reload read it: keys, values, and what does not go together. It changes
nothing, reads no sources, and needs neither a running hub nor privileges.
Errors have file, line and column.`,
		Example: "  weir-hub check /etc/weir-hub/hub.yaml && systemctl reload weir-hub\n" +
			"  weir-hub check --json hub.yaml | jq -r '.errors[].path'",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return exactly("FILE")(c, args)
		},
	}
	asJSON := c.Flags().Bool("json", false, "print JSON")
	c.RunE = func(c *cobra.Command, args []string) error {
		name := cmp.Or(append(args, defaultConfig)...)
		h, err := config.LoadHub(name)
		var wrong config.Errors
		if err != nil && !errors.As(err, &wrong) {
			return err // it cannot be read
		}
		if *asJSON {
			all := []configError{}
			for _, e := range wrong {
				all = append(all, configError{e.Line, e.Column, e.Path, e.Err.Error()})
			}
			if err := terminal.PrintJSON(c.OutOrStdout(), map[string]any{"file": name, "errors": all}); err != nil {
				return err
			}
		} else {
			for _, e := range wrong {
				fmt.Fprintln(c.ErrOrStderr(), e)
			}
		}
		if err != nil {
			return fmt.Errorf("%s: errors: %d", name, len(wrong))
		}
		if !*asJSON {
			if text := h.Metrics.Warning(); text != "" {
				fmt.Fprintln(c.ErrOrStderr(), "warning:", text)
			}
			if a, err := authority.Open(string(h.Keys)); err == nil { // who may not read the keys may check
				members, _ := a.Members() // none: nor may they be read
				for _, text := range hub.EmptyWaves(h, members) {
					fmt.Fprintln(c.ErrOrStderr(), "warning:", text)
				}
			}
			sources, waves := 0, 0
			for _, l := range h.Lists {
				sources += len(l.All())
				if h.RolloutOf(l) != nil {
					waves++
				}
			}
			fmt.Fprintf(c.OutOrStdout(), "%s: no errors; lists: %d, sources: %d, lists that go out in waves: %d\n", name, len(h.AllLists()), sources, waves)
			if at := h.JoinURL(); at != "" {
				fmt.Fprintln(c.OutOrStdout(), "hosts join at", at)
			}
		}
		return nil
	}
	return c
}

// configError is an error of a configuration as it is printed in JSON, as by weir check.
type configError struct {
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Path   string `json:"path"`
	Error  string `json:"error"`
}
