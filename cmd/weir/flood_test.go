package main

import (
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

func TestFlood(t *testing.T) {
	began := time.Now().Add(-41 * time.Second)
	answers := api.FloodRule{
		Pattern: "udp length 468 sport 123 dst 203.0.113.10/32", Name: "NTP answers", Share: 0.6,
		Packets: api.FloodShare{Hits: 0, Of: 9600}, Conversations: api.FloodShare{Hits: 0, Of: 612},
	}
	fragments := api.FloodRule{Pattern: "udp fragment later", Name: "later fragments", Share: 0.38, Packets: api.FloodShare{Of: 9600}, Conversations: api.FloodShare{Of: 612}}
	d := &fakeDaemon{floods: api.Floods{Sampled: true, Quiet: 24, Rate: 212_000, Usual: 14_000, Varies: 2_000, Past: []api.Flood{}, Now: &api.Flood{
		Begin: began, Kind: api.FloodRuled, Of: "packets", Rate: 212_000, Usual: 14_000, Destination: "203.0.113.10", DestinationShare: 0.97,
		Sources: 11_900, LargestSources: 0.02, Rules: []api.FloodRule{answers, fragments},
	}}}
	socket := serveDaemon(t, d)
	show := func(want string, args ...string) {
		t.Helper()
		code, out, log := weir(t, "", append([]string{"flood", "--socket", socket}, args...)...)
		if _, rest, ok := strings.Cut(out, ")   "); ok && strings.HasPrefix(out, "FLOOD") {
			out = rest // without times
		}
		if code != exitOK || out+log != want {
			t.Errorf("%v: exit code %d\n%s%s\nwant\n%s", args, code, out, log, want)
		}
	}
	show(`212 kpps, usual 14 kpps ± 2 kpps
to          203.0.113.10 (97 %)
sources     some 11,900; the largest 100 send 2 %: blocking sources will not help
it is       1  udp length 468 sport 123 dst 203.0.113.10/32, 60 %: NTP answers
            2  udp fragment later, 38 %: later fragments
               everything else, 2 %
dropped     0 % of it now
would hit   1: 0 of 612 usual conversations, 0 of 9600 usual packets
            2: 0 of 612 usual conversations, 0 of 9600 usual packets
do          weir flood --apply all
`)
	const limits = "weir limit --ttl 10m --trial 2s 'udp length 468 sport 123 dst 203.0.113.10/32' 0pps\nweir limit --ttl 10m --trial 2s 'udp fragment later' 0pps\n"
	show(limits, "--propose")
	show("no flood is over yet\n", "--history")

	code, out, log := weir(t, "", "flood", "--socket", socket, "--apply", "2", "--ttl", "1h", "--trial", "5s")
	if c := d.changedPolice; code != exitOK || c.Pattern != fragments.Pattern || c.Rate != "0pps" || c.For != 3600 || c.Trial != 5 || !strings.Contains(log, "DROPPED: "+fragments.Pattern) || !strings.HasPrefix(out, "FLOOD") {
		t.Errorf("exit code %d, %+v\n%s%s", code, c, out, log)
	}
	for _, during := range []string{"0s", "2m"} {
		if code, _, log := weir(t, "", "flood", "--socket", socket, "--rehearse", during); code != exitUsage || !strings.Contains(log, "want 1s to 1m") {
			t.Errorf("--rehearse %s: exit code %d, %s", during, code, log)
		}
	}
	for _, of := range []string{"3", "0", "1,", "x"} {
		if code, _, log := weir(t, "", "flood", "--socket", socket, "--apply", of); code != exitUsage || !strings.Contains(log, "numbers of rules up to 2") {
			t.Errorf("--apply %s: exit code %d, %s", of, code, log)
		}
	}
	d.changedPolice = api.PoliceChange{}
	d.floods.Now.Rules[1].Proposed = true
	if code, _, _ := weir(t, "", "flood", "--socket", socket, "--apply", "all"); code != exitOK || d.changedPolice.Pattern != answers.Pattern || d.changedPolice.For != 600 || d.changedPolice.Trial != 2 {
		t.Errorf("exit code %d, %+v", code, d.changedPolice)
	}
	d.floods.Now.Rules[1].Proposed, d.floods.Now.Rules[1].Addresses = false, []string{"192.0.2.1", "192.0.2.2"}
	if code, _, log := weir(t, "", "flood", "--socket", socket, "--apply", "2"); code != exitOK || len(d.changed.Entries) != 2 || d.changed.TTL != 600 || !strings.Contains(log, "blocked for 10m") {
		t.Errorf("exit code %d, %+v, %s", code, d.changed, log)
	}
	show(strings.Replace(limits, "weir limit --ttl 10m --trial 2s 'udp fragment later' 0pps", "weir block --ttl 10m 192.0.2.1 192.0.2.2", 1), "--propose")
	d.floods.Now.Rules[1].Addresses = nil
	d.floods.Now.Rules[0].Proposed, d.floods.Now.Rules[1].Proposed = true, true
	show("nothing to propose: "+d.floods.Now.Do()+"\n", "--propose")
	if do, is := d.floods.Now.Do(), d.floods.Now.Is()[0]; !strings.HasPrefix(do, "not sure yet") || !strings.HasSuffix(is, "(not sure)") {
		t.Errorf("%s, %s", do, is)
	}
	d.floods.Now.Rules[0].Proposed = false
	show(limits[:strings.Index(limits, "\n")+1], "--propose")
	d.floods.Past, d.floods.Now = []api.Flood{*d.floods.Now}, nil
	end := began.Add(30 * time.Second)
	d.floods.Past[0].End = &end
	show("no flood: 212 kpps, usual 14 kpps ± 2 kpps\nthe last one ended 11s ago: weir flood --history\n")
	d.floods = api.Floods{Past: []api.Flood{}}
	show("not known: packets are not sampled (samples: false in weir.yaml)\n")
	show("no flood: nothing to propose\n", "--propose")
	if code, _, _ := weir(t, "", "flood", "--socket", socket, "--history", "--propose"); code != exitUsage {
		t.Errorf("both: exit code %d", code)
	}
}
