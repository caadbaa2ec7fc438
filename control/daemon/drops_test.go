package daemon

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/maxmind/mmdbwriter"
	"github.com/maxmind/mmdbwriter/mmdbtype"

	"weir/control/api"
	"weir/control/observe/drops"
	"weir/control/quantity"
	"weir/filter/verdict"
	"weir/tests/lab"
)

// Drops are added up by autonomous system; without a database, or with a broken one,
// there is a clear error, and a reload changes nothing.
func TestDropsByASN(t *testing.T) {
	l := lab.New(t)
	r := configure(t, l.B)
	w, err := mmdbwriter.New(mmdbwriter.Options{DatabaseType: "Test", RecordSize: 24, IncludeReservedNetworks: true})
	if err != nil {
		t.Fatal(err)
	}
	_, network, _ := net.ParseCIDR("192.0.2.0/24")
	if err := w.Insert(network, mmdbtype.Map{
		"autonomous_system_number": mmdbtype.Uint32(64496), "autonomous_system_organization": mmdbtype.String("Example"),
	}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "asn.mmdb")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteTo(f); err != nil {
		t.Fatal(err)
	}
	f.Close()
	r.c.Geo.ASN = quantity.Path(path)
	d := begin(t, r)
	now := time.Now()
	d.drops.history.Add(drops.Interval{
		Begin: now.Add(-time.Second), End: now, Packets: 10, Bytes: 600, Flows: map[drops.Flow]drops.Count{
			{Remote: netip.MustParseAddr("192.0.2.1"), Reason: verdict.Blocked, List: "feed"}:    {Packets: 4, Least: 4},
			{Remote: netip.MustParseAddr("192.0.2.2"), Reason: verdict.RateLimited}:              {Packets: 2, Least: 1},
			{Remote: netip.MustParseAddr("198.51.100.1"), Reason: verdict.Blocked, List: "feed"}: {Packets: 1, Least: 1},
		},
	})
	got, err := d.Drops(t.Context(), api.DropsQuestion{By: api.ByASN, Last: time.Minute, Limit: 9})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Drops) != 2 || got.Other != 3 || got.Packets != 10 {
		t.Fatalf("%+v", got)
	}
	if n := got.Drops[0]; n.Key != "AS64496" || n.Name != "Example" || n.Packets != 6 || n.Least != 5 || n.Sources != 2 || strings.Join(n.Reasons, " ") != "blocked rate-limited" {
		t.Errorf("%+v", n)
	}
	if n := got.Drops[1]; n.Key != "" || n.Packets != 1 {
		t.Errorf("%+v", n)
	}
	if _, err := d.Drops(t.Context(), api.DropsQuestion{By: api.ByCountry, Last: time.Minute, Limit: 9}); err == nil || !strings.Contains(err.Error(), "geo.country") {
		t.Errorf("without a database: %v", err)
	}
	if err := os.WriteFile(path, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "geo.asn: "+path) {
		t.Errorf("a reload with a broken database: %v", err)
	}
	if got, err := d.Drops(t.Context(), api.DropsQuestion{By: api.ByASN, Last: time.Minute, Limit: 9}); err != nil || len(got.Drops) != 2 {
		t.Errorf("after the database broke: %+v, %v", got, err)
	}
}
