package authority

import (
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"weir/control/durable"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
)

// Cluster says how the servers of a NATS cluster of the fleet's own are configured.
type Cluster struct {
	Servers []string // URLs at which nodes and hub reach them: tls://HOST:PORT, one for each
	Names   []string // further names and addresses, of all of them
	Routes  int      // the port at which they connect to each other
	Leaves  int      // the port at which the servers of sites connect
	Files   string   // the directory on the servers that has what Write writes
	State   string   // the directory on the servers for the stream
}

// The files of a server, beside its configuration.
const (
	clusterConfig = "nats-server.conf"
	clusterCA     = "ca.pem"
	clusterCert   = "server.pem"
	clusterKey    = "server.key"
)

// Write makes a directory in dir for each server, named after its host, with the
// configuration of nats-server there, and a certificate. It returns the directories.
func (c Cluster) Write(a *Authority, dir string) (made []string, err error) {
	var routes, hosts []string
	for _, s := range c.Servers {
		host, err := enrollment.ServerHost(s)
		if err != nil {
			return nil, err
		}
		if slices.Contains(hosts, host) {
			return nil, fmt.Errorf("%s: two servers on one host would fail together: want a host for each", host)
		}
		hosts = append(hosts, host)
		routes = append(routes, fmt.Sprintf("tls://%s", net.JoinHostPort(host, fmt.Sprint(c.Routes))))
	}
	_, operator, err := a.Operator()
	if err != nil {
		return nil, err
	}
	account, accountToken, err := a.ClusterAccount()
	if err != nil {
		return nil, err
	}
	stream, streamToken, err := a.Stream()
	if err != nil {
		return nil, err
	}
	system, systemToken, err := a.System()
	if err != nil {
		return nil, err
	}
	for i, s := range c.Servers {
		u, _ := url.Parse(s)
		listen := "0.0.0.0"
		if net.ParseIP(hosts[i]) != nil {
			listen = hosts[i]
		}
		der, key, err := a.ca.Load().certificate(0, hosts[i], append([]string{hosts[i]}, c.Names...), a.expiry(siteLife), x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
		if err != nil {
			return nil, err
		}
		at := func(name string) string { return filepath.Join(c.Files, name) }
		var text strings.Builder
		if err := clusterTemplate.Execute(&text, map[string]any{
			"Config": at(clusterConfig), "CA": at(clusterCA), "Cert": at(clusterCert), "Key": at(clusterKey), "State": c.State,
			"Host": hosts[i], "Listen": net.JoinHostPort(listen, u.Port()), "Routes": append(slices.Clone(routes[:i]), routes[i+1:]...), "Domain": wire.HubDomain,
			"RoutesListen": net.JoinHostPort(listen, fmt.Sprint(c.Routes)), "LeavesListen": net.JoinHostPort(listen, fmt.Sprint(c.Leaves)),
			"Operator": operator, "Account": account.Subject, "AccountToken": accountToken, "Stream": stream.Subject, "StreamToken": streamToken, "System": system.Subject, "SystemToken": systemToken,
		}); err != nil {
			return nil, err
		}
		to := filepath.Join(dir, hosts[i])
		if err := durable.MkdirAll(to); err != nil {
			return nil, err
		}
		for name, content := range map[string][]byte{
			clusterConfig: []byte(text.String()), clusterCA: a.ca.Load().pem, clusterCert: certificatePEM(der), clusterKey: key,
		} {
			if err := durable.WriteFile(filepath.Join(to, name), content); err != nil {
				return nil, err
			}
		}
		made = append(made, to)
	}
	return made, nil
}

var clusterTemplate = template.Must(template.New(clusterConfig).Parse(`# A server of a weir fleet, on {{.Host}}: nats-server -c {{.Config}}
server_name: "{{.Host}}"
listen: "{{.Listen}}"

# All connections have certificates of the fleet's authority, on both sides.
tls { cert_file: "{{.Cert}}", key_file: "{{.Key}}", ca_file: "{{.CA}}", verify: true, min_version: "1.3", timeout: 5 }

cluster {
  name: weir
  listen: "{{.RoutesListen}}"
  tls { cert_file: "{{.Cert}}", key_file: "{{.Key}}", ca_file: "{{.CA}}", verify: true, min_version: "1.3", timeout: 5 }
  routes: [{{range .Routes}}
    "{{.}}"{{end}}
  ]
  # A server that was cut off is connected anew soon after it can be reached.
  ping_interval: "3s"
  ping_max: 3
}

# For the servers of sites.
leafnodes {
  listen: "{{.LeavesListen}}"
  tls { cert_file: "{{.Cert}}", key_file: "{{.Key}}", ca_file: "{{.CA}}", verify: true, min_version: "1.3", timeout: 5 }
}

# What is acknowledged is on disk.
jetstream { store_dir: "{{.State}}/jetstream", domain: {{.Domain}}, sync_interval: always }

max_connections: 100000
max_payload: 1MB
max_pending: 64MB
max_control_line: 4KB
write_deadline: "10s"
ping_interval: "20s"

# The fleet's operator signs accounts. The hub sends them anew when a node is revoked
# to one of the servers, which passes them on.
operator: {{.Operator}}
system_account: {{.System}}
resolver { type: full, dir: "{{.State}}/accounts", allow_delete: false, interval: "2m" }
resolver_preload {
  {{.System}}: {{.SystemToken}}
  {{.Stream}}: {{.StreamToken}}
  {{.Account}}: {{.AccountToken}}
}
`))
