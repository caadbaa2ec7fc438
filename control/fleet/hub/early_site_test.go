package hub

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weir/tests/lab"
	"weir/tests/wait"
)

// A site that was there before the hub has its lists as soon as the hub is there.
func TestSiteBeforeHub(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.sites = lab.FreeAddress(t)
	file := filepath.Join(f.dir, "drop.txt")
	if err := os.WriteFile(file, []byte("192.0.2.0/24\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	listen := lab.FreeAddress(t)
	e, err := f.authority.EnrollSite("paris", []string{"tls://" + listen}, []string{"tls://" + f.sites})
	if err != nil {
		t.Fatal(err)
	}
	const alone = "no connection to the hub"
	said := &lines{}
	f.site(e, t.TempDir(), listen, slog.New(slog.NewTextHandler(said, nil)))
	wait.Until(t, func() error {
		if len(said.of(alone)) == 0 {
			return errors.New("the site has not looked yet")
		}
		return nil
	})
	f.start("lists: {drop: {sources: [{file: " + file + "}], interval: 1h}}\n")
	began := time.Now()
	a := f.answererAt("tls://"+listen, "edge-1", nil)
	wait.Until(t, func() error {
		for _, l := range a.node.Lists() {
			if l.Name() == "drop" {
				return nil
			}
		}
		return fmt.Errorf("the node does not have the list")
	})
	// Where its question was lost, the server waits for 30 seconds, and the site connects anew.
	if took := time.Since(began); len(said.of(alone)) > 1 && took > 30*time.Second {
		t.Errorf("after %v, and %q", took, said.of(alone))
	}
}
