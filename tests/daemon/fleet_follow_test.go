package daemon

import (
	"encoding/json"
	"net/netip"
	"os"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/tests/long"
	"weir/tests/must"
)

// A hub that is gone for good, with its keys and its state, is taken over within a minute from the copy of a standby.
// No listed packet passes meanwhile, and no change is lost: what was acknowledged after the copy is taken back from
// the nodes.
func TestFleetFollow(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	f := newFleet(t, 2, 1_000)
	f.kill()
	must.Write(t, f.file("hub.yaml"), string(must.Read(t, f.file("hub.yaml")))+"join: {listen: \""+hubAddress+":4223\"}\n")
	f.start()
	var operator struct{ URL, Text string }
	if err := json.Unmarshal([]byte(f.hub("operator", "create", "spare", "--role", api.RoleStandby, "--json", "--config", f.file("hub.yaml"))), &operator); err != nil {
		t.Fatal(err)
	}
	var blocked []netip.Addr
	block := func(changes int) {
		t.Helper()
		for range changes {
			src := address(commandBlock, len(blocked))
			if c, err := f.change(t.Context(), config.FleetBlock, false, src); err != nil || !c.Published {
				t.Fatalf("%+v, %v", c, err)
			}
			blocked = append(blocked, src)
		}
	}
	block(10)
	copied := f.file("copy.tar.gz")
	f.host.In(t, func() { f.hub("follow", operator.URL, operator.Text, copied, "--once") })
	block(20)
	f.converge()
	for _, n := range f.nodes {
		n.load.list(froms(blocked...)...)
		n.load.run()
	}

	f.kill()
	for _, dir := range []string{"keys", "hub"} {
		if err := os.RemoveAll(f.file(dir)); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	f.hub("restore", copied, "--config", f.file("hub.yaml"))
	f.start()
	block(1)
	took := time.Since(began)
	t.Logf("the standby has acknowledged a command after %v", took.Round(time.Millisecond))
	if took > time.Minute {
		t.Errorf("the standby has acknowledged a command after %v, want a minute at most", took)
	}
	for _, l := range f.converge() {
		if l.Name == config.FleetBlock && l.Entries != len(blocked) {
			t.Errorf("list %s has %d entries, want %d: lost are %+v", l.Name, l.Entries, len(blocked), must.Have(f.api.FleetLost(t.Context())))
		}
	}
	for _, n := range f.nodes {
		n.load.expect(n.name+": a blocked source", false, froms(blocked...)...)
		n.load.finish()
	}
}
