package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
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
		RunE:    func(_ *cobra.Command, args []string) error { return share(newRoot(), args[0]) },
	}
}

// share writes what is made from the commands below a directory.
func share(root *cobra.Command, dir string) error {
	files := map[string]func(path string) error{
		"bash-completion/completions/weir":    func(path string) error { return root.GenBashCompletionFileV2(path, true) },
		"fish/vendor_completions.d/weir.fish": func(path string) error { return root.GenFishCompletionFile(path, true) },
		"zsh/site-functions/_weir":            root.GenZshCompletionFile,
	}
	for _, c := range documented(root) {
		files[filepath.Join("man", "man"+manSection, manName(c)+"."+manSection)] = func(path string) error {
			return os.WriteFile(path, []byte(manPage(c)), 0o644)
		}
	}
	for name, write := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := write(path); err != nil {
			return err
		}
	}
	return nil
}
