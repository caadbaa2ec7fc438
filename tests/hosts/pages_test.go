package hosts

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// The addresses of the host, and of a client at its eth0.
const (
	hostAddress = "192.0.2.1"
	client      = "192.0.2.7"
)

// A page has a configuration, and commands.
type page struct {
	config   string
	commands []string // of the block
	watched  []string // of the first column of the table
}

func readPage(t *testing.T, name string) (p page) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return parsePage(string(text))
}

func parsePage(text string) (p page) {
	if c := regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```\n").FindStringSubmatch(text); c != nil {
		p.config = c[1] + "\n"
	}
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(line, "    sudo "); ok {
			command, _, _ = strings.Cut(command, "  #")
			p.commands = append(p.commands, strings.TrimSpace(command))
		}
		if c := regexp.MustCompile("^\\| `(weir [^`]*)`").FindStringSubmatch(line); c != nil {
			p.watched = append(p.watched, strings.ReplaceAll(c[1], "ADDRESS", client))
		}
	}
	return p
}

// newServer returns a host with an eth0, on which a client is, and with /etc, /run and /var/lib of
// its own, so that a page is followed as it stands. The third is for a container.
func newServer(t *testing.T) (h *host, clients, container machine) {
	t.Helper()
	clients, container = machine{lab.NewHost(t, "clients")}, machine{lab.NewHost(t, "container")}
	h = newHost(t) // which sees the namespaces that there are
	must(t, h, fmt.Sprintf(`set -e
		mkdir -p DIR/run/netns DIR/bin
		ln -s $WEIR DIR/bin/weir
		mount --rbind /run/netns DIR/run/netns
		mount --rbind DIR/run /run
		mount -t tmpfs none /etc
		mount -t tmpfs none /var/lib
		mount -t bpf bpf /sys/fs/bpf
		mkdir /etc/weir /var/lib/weir /run/weir
		ip -n NS link add eth0 type veth peer name eth0 netns %[1]s
		ip -n NS address add %[2]s/24 dev eth0
		ip -n NS link set eth0 up
		ip -n %[1]s address add %[3]s/24 dev eth0
		ip -n %[1]s link set eth0 up`, clients.Netns, hostAddress, client))
	return h, clients, container
}

// must runs a script, which has to succeed.
func must(t *testing.T, h *host, script string) string {
	t.Helper()
	out, code := h.run(t, script)
	if code != 0 {
		t.Fatalf("%s: exit code %d\n%s", h.name(script), code, out)
	}
	return out
}

// in runs a command of a page in the network namespace.
func (h *host) in(t *testing.T, command string) (string, int) {
	t.Helper()
	return h.run(t, "PATH=DIR/bin:$PATH; exec nsenter --net=/run/netns/NS bash -c \"$(cat <<'COMMAND'\n"+command+"\nCOMMAND\n)\"")
}

// serve answers HTTP at an address, in the namespace.
func (h machine) serve(t *testing.T, address string) {
	t.Helper()
	h.In(t, func() {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })}
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
	})
}

// reaches reports whether HTTP at an address answers.
func (h machine) reaches(t *testing.T, address string) bool {
	t.Helper()
	return h.reachesFrom(t, "0.0.0.0", address)
}

// reachesFrom is reaches from one of several addresses.
func (h machine) reachesFrom(t *testing.T, from, address string) (answers bool) {
	t.Helper()
	h.In(t, func() {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Second}
		c, err := d.Dial("tcp4", address)
		if err != nil {
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(2 * time.Second))
		fmt.Fprint(c, "GET / HTTP/1.0\r\n\r\n")
		text, _ := io.ReadAll(c)
		answers = strings.HasSuffix(string(text), "hello")
	})
	return answers
}

// start runs the service, until the test ends.
func (h *host) start(t *testing.T) {
	t.Helper()
	must(t, h, "nsenter --net=/run/netns/NS DIR/bin/weir run -c /etc/weir/weir.yaml >DIR/log 2>&1 & echo $! >DIR/pid")
	t.Cleanup(func() {
		h.run(t, "kill -INT $(cat DIR/pid); while kill -0 $(cat DIR/pid) 2>/dev/null; do sleep 0.05; done")
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(h.dir, "log"))
			t.Logf("the log:\n%s", log)
		}
	})
	for deadline := wait.Deadline(); ; time.Sleep(100 * time.Millisecond) {
		// Feeds cannot be fetched here.
		out, code := h.in(t, "weir status 2>&1")
		if (code == 0 || code == 4 && strings.Contains(out, "NOT READY")) && !strings.Contains(out, "STARTING") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("exit code %d\n%s", code, out)
		}
	}
}

// Each page is followed as it stands: the service has its configuration, its commands succeed, and the client, which reaches the host, is banned by the command of the page.
func TestPages(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	for _, c := range []struct {
		name  string
		setup string
		ban   string // a command of weir; "": the page's
		flood bool   // of UDP, by another source
	}{
		{name: "docker", setup: "ip -n NS link add docker0 type bridge; ip -n NS link set docker0 up"},
		{name: "mail", ban: "weir block --list fail2ban --ttl 10m --reason 'sshd, 5 failures' " + client},
		{name: "router", setup: "ip -n NS link add eth1 type veth peer name trunk; ip -n NS link set eth1 up; ip -n NS link set trunk up",
			ban: "weir block --list quarantine " + client},
		{name: "wireguard", setup: "ip -n NS tuntap add wg0 mode tun; ip -n NS link set wg0 up", ban: "weir block --list peers " + client},
		{name: "game", flood: true},
		{name: "web", ban: "weir block " + client},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := readPage(t, "hosts/"+c.name+".md")
			h, clients, _ := newServer(t)
			if c.setup != "" {
				must(t, h, "set -e; "+c.setup)
			}
			h.serve(t, hostAddress+":80")
			must(t, h, "cat >/etc/weir/weir.yaml <<'CONFIG'\n"+p.config+"CONFIG")
			started := false
			for _, command := range p.commands {
				switch first, _, _ := strings.Cut(command, " "); {
				case command == "systemctl enable --now weir":
					h.start(t)
					started = true
				case first == "weir" && command != "weir top" && (started || strings.HasPrefix(command, "weir check ")):
					out, code := h.in(t, command+" 2>&1")
					if code != 0 && !(code == 4 && strings.HasPrefix(command, "weir status")) || strings.Contains(out, "PROBLEM") {
						t.Errorf("%s: exit code %d\n%s", command, code, out)
					}
				}
			}
			if !started {
				t.Fatalf("the page starts nothing: %q", p.commands)
			}
			if out, _ := h.in(t, "weir monitor off 2>&1"); !clients.reaches(t, hostAddress+":80") {
				t.Errorf("the client does not reach the host\n%s", out)
			}
			if c.flood {
				flood(t, h, clients)
			}
			ban, watched := c.ban, 0
			for _, command := range p.watched {
				switch {
				case strings.HasPrefix(command, "weir block "):
					if ban == "" {
						ban = command
					}
				case strings.Contains(command, "--follow"), command == "weir top", command == "weir doctor":
				default:
					out, code := h.in(t, command+" 2>&1")
					if code != 0 && !(code == 4 && command == "weir status") {
						t.Errorf("%s: exit code %d\n%s", command, code, out)
					}
					watched++
				}
			}
			if watched < 2 {
				t.Errorf("the page watches nothing: %q", p.watched)
			}
			if out, code := h.in(t, "weir unallow "+client+" >/dev/null 2>&1; "+ban+" 2>&1"); code != 0 {
				t.Errorf("%s: exit code %d\n%s", ban, code, out)
			}
			if clients.reaches(t, hostAddress+":80") {
				t.Error("the banned client reaches the host")
			}
			if out, code := h.in(t, "weir explain "+client); code != 0 || !strings.Contains(out, "drop") {
				t.Errorf("exit code %d\n%s", code, out)
			}
		})
	}
}

// flood sends as many packets as it can from one source, and a few from the client, who loses none.
func flood(t *testing.T, h *host, clients machine) {
	t.Helper()
	const flooder, packets, play = "192.0.2.66", 40_000, 200
	must(t, h, "ip -n "+clients.Netns+" address add "+flooder+"/24 dev eth0")
	var server net.PacketConn
	h.In(t, func() {
		var err error
		if server, err = net.ListenPacket("udp4", hostAddress+":27015"); err != nil {
			t.Fatal(err)
		}
	})
	raw, err := server.(*net.UDPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var refused error // room for all, so that the socket drops none
	err = raw.Control(func(fd uintptr) { refused = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20) })
	if err := errors.Join(err, refused); err != nil {
		t.Fatal(err)
	}
	received := make(chan map[string]int, 1)
	go func() {
		from, buffer := make(map[string]int), make([]byte, 100)
		for {
			_, a, err := server.ReadFrom(buffer)
			if err != nil {
				received <- from
				return
			}
			from[a.(*net.UDPAddr).IP.String()]++
		}
	}()
	dial := func(source string) (c net.Conn) {
		clients.In(t, func() {
			var err error
			d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(source)}}
			if c, err = d.Dial("udp4", hostAddress+":27015"); err != nil {
				t.Fatal(err)
			}
		})
		return c
	}
	attack, player := dial(flooder), dial(client)
	begun := time.Now()
	for i := range packets {
		attack.Write([]byte("x"))
		if i%(packets/play) == 0 {
			player.Write([]byte("move"))
		}
	}
	took := time.Since(begun)
	time.Sleep(200 * time.Millisecond) // what is on the way
	server.Close()
	from := <-received
	// The packets up to the threshold, the limit's burst, and the limit for as long as it took.
	if most := 2000 + 500 + int(500*(took.Seconds()+1)); from[flooder] == 0 || from[flooder] > 2*most || from[client] != play {
		t.Errorf("of %d packets of a flood in %v, %d came through, at most %d should, and %d of %d of a player", packets, took, from[flooder], most, from[client], play)
	}
	if out, _ := h.in(t, "weir status"); !strings.Contains(out, "rate-limited") {
		t.Errorf("nothing was limited:\n%s", out)
	}
}

// A ban in nftables' input chain does not reach a port that is published; weir's does. The page has
// the lines.
func TestPublishedPort(t *testing.T) {
	lab.Root(t)
	lab.Tool(t, "nft")
	h, clients, container := newServer(t)
	// As after docker run -p 8080:80.
	must(t, h, fmt.Sprintf(`set -e
		ip -n NS link add docker0 type bridge
		ip -n NS address add 172.17.0.1/16 dev docker0
		ip -n NS link set docker0 up
		ip -n NS link add veth0 type veth peer name eth0 netns %[1]s
		ip -n NS link set veth0 master docker0 up
		ip -n %[1]s address add 172.17.0.2/16 dev eth0
		ip -n %[1]s link set eth0 up
		ip -n %[1]s route add default via 172.17.0.1
		ip netns exec NS nft -f - <<'END'
			table ip nat {
				chain prerouting { type nat hook prerouting priority dstnat; tcp dport 8080 dnat to 172.17.0.2:80; }
				chain postrouting { type nat hook postrouting priority srcnat; ip saddr 172.17.0.0/16 oifname "eth0" masquerade; }
			}
END`, container.Netns))
	container.serve(t, "172.17.0.2:80")
	h.serve(t, hostAddress+":80")
	must(t, h, "cat >/etc/weir/weir.yaml <<'CONFIG'\n"+strings.Replace(readPage(t, "hosts/docker.md").config, "  drop: {feed: spamhaus_drop}\n", "", 1)+"CONFIG")
	h.start(t)

	published := hostAddress + ":8080"
	nft, block := 0, ""
	for _, command := range readPage(t, "migrating.md").commands {
		switch {
		case strings.HasPrefix(command, "nft add "):
			if out, code := h.in(t, command); code != 0 {
				t.Fatalf("%s: exit code %d\n%s", command, code, out)
			}
			nft++
		case strings.HasPrefix(command, "weir block ") && strings.HasSuffix(command, client):
			block = command
		}
	}
	if nft != 5 || block == "" {
		t.Fatalf("the page has %d lines for nft, and %q", nft, block)
	}
	if clients.reaches(t, hostAddress+":80") {
		t.Error("nftables lets the banned client reach the host")
	}
	if !clients.reaches(t, published) {
		t.Error("the banned client does not reach the container, although it passes the input chain by")
	}
	if out, code := h.in(t, block); code != 0 {
		t.Fatalf("%s: exit code %d\n%s", block, code, out)
	}
	if clients.reaches(t, published) {
		t.Error("the client that weir blocks reaches the container")
	}
	if out, _ := h.in(t, "weir unblock "+client+" && weir status"); !clients.reaches(t, published) {
		t.Errorf("the client does not reach the container after it is unblocked\n%s", out)
	}
}
