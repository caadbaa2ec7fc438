package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"weir/control/config"
	"weir/control/feed"
)

// TestFeeds checks that each known feed is printed, and that the list that is printed for
// it is a configuration.
func TestFeeds(t *testing.T) {
	printed := ran(t, "feeds")
	var all []knownFeed
	if err := json.Unmarshal([]byte(ran(t, "feeds", "--json")), &all); err != nil {
		t.Fatal(err)
	}
	if len(all) != len(feed.Catalog()) {
		t.Errorf("%d feeds in JSON, want %d", len(all), len(feed.Catalog()))
	}
	for _, k := range all {
		if !strings.Contains(printed, "\n"+k.Name+" ") {
			t.Errorf("%s is not printed", k.Name)
		}
		text := ran(t, "feeds", k.Name)
		_, lists, found := strings.Cut(text, "\n\n")
		if !found {
			t.Fatalf("no list for %s:\n%s", k.Name, text)
		}
		c, err := config.Parse("weir.yaml", []byte("interfaces: [{name: eth0, egress: true}]\n"+lists))
		if err != nil {
			t.Errorf("%s: %v", k.Name, err)
			continue
		}
		if f, err := feed.ParseFormat(k.Format); err != nil || !slices.Equal(c.Lists[0].Feed().Format.Sets, f.Sets) || fmt.Sprint(f) != fmt.Sprint(c.Lists[0].Format) {
			t.Errorf("%s: format %s is read as %+v, %v", k.Name, k.Format, f, err)
		}
	}
	var one knownFeed
	if err := json.Unmarshal([]byte(ran(t, "feeds", "aws", "--json")), &one); err != nil || one.Use != feed.Provider {
		t.Errorf("%+v, %v", one, err)
	}
}

// ran returns what a command prints, and fails the test if it fails.
func ran(t *testing.T, args ...string) string {
	t.Helper()
	code, out, log := weir(t, "", args...)
	if code != exitOK {
		t.Fatalf("weir %s: exit code %d: %s", strings.Join(args, " "), code, log)
	}
	return out
}
