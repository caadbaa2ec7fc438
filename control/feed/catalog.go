package feed

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"weir/control/quantity"
)

// Known is a feed that a list can name instead of its URLs and format.
type Known struct {
	Name    Name
	About   string // its contents, in a few words
	Page    string // its maintainers' page
	License string // an SPDX identifier, or the terms in a few words
	Use     Use
	Private bool // it lists private and other special networks, too

	URLs    []URL
	Format  Format
	Lenient bool
	Least   time.Duration // the shortest interval that its maintainers ask for, or that makes sense
}

// Use says which packets a feed is made for.
type Use string

// The uses of feeds.
const (
	Sources      Use = "sources"      // those of hosts that attack
	Both         Use = "both"         // the same, and those to them, as of botnets' servers
	Destinations Use = "destinations" // those to servers that own hosts should not use
	Provider     Use = "provider"     // those of a provider's hosts, which are allowed or blocked
)

// Name is the name of a feed of the catalog.
type Name string

// UnmarshalText sets the name of a feed that the catalog has.
func (n *Name) UnmarshalText(text []byte) error {
	if _, ok := Name(text).Known(); !ok {
		var names []string
		for _, k := range catalog {
			names = append(names, string(k.Name))
		}
		if near := quantity.Nearest(string(text), names); near != "" {
			return fmt.Errorf("unknown feed %q: did you mean %s?", text, near)
		}
		// A publisher's name alone, as in spamhaus.
		like := slices.DeleteFunc(names, func(name string) bool { return !strings.Contains(name, strings.ToLower(string(text))) })
		if n := len(like); n > 0 && n <= 10 {
			return fmt.Errorf("unknown feed %q: did you mean %s?", text, strings.Join(like, ", "))
		}
		return fmt.Errorf("unknown feed %q: `weir feeds` prints the known ones; for another one, set sources instead of feed", text)
	}
	*n = Name(text)
	return nil
}

// Known returns the feed of that name.
func (n Name) Known() (Known, bool) {
	i, ok := slices.BinarySearchFunc(catalog, n, func(k Known, n Name) int { return strings.Compare(string(k.Name), string(n)) })
	if !ok {
		return Known{}, false
	}
	return catalog[i], true
}

// Catalog returns the known feeds, sorted by name.
func Catalog() []Known { return slices.Clone(catalog) }

// complete sets the fields of a Spec that are not given to those of the feed.
func (k Known) complete(s *Spec, given func(name string) bool) {
	if !given("sources") {
		s.Sources = nil
		for _, u := range k.URLs {
			src := Source{URL: u}
			src.SetDefaults()
			s.Sources = append(s.Sources, src)
		}
	}
	if !given("format") {
		s.Format = k.Format
	}
	if !given("lenient") {
		s.Lenient = k.Lenient
	}
	if !given("interval") {
		s.Interval = max(s.Interval, quantity.Duration(k.Least))
	}
}

const (
	hour = time.Hour
	day  = 24 * time.Hour
)

// The formats of feeds, by their makers.
var (
	googleRanges = Format{Kind: JSON, Path: ".prefixes[].ipv4Prefix,.prefixes[].ipv6Prefix"}
	dshieldText  = Format{Kind: CSV, Column: "1", LastColumn: "2", Separator: '\t'}
)

// awsService returns the format of Amazon's ranges for one service.
func awsService(name string) Format {
	return Format{Kind: JSON, Path: ".prefixes[service=" + name + "].ip_prefix,.ipv6_prefixes[service=" + name + "].ipv6_prefix"}
}

const (
	ofSources  = "the terms of its sources"
	noTerms    = "none stated"
	fireholWeb = "https://iplists.firehol.org"
	amazonURL  = "https://ip-ranges.amazonaws.com/ip-ranges.json"
	githubURL  = "https://api.github.com/meta"
	githubMeta = "https://docs.github.com/en/authentication/keeping-your-account-and-data-secure/about-githubs-ip-addresses"
	blocklist  = "https://www.blocklist.de/en/export.html"
)

// raw returns the URL of a file of a repository at GitHub.
func raw(path string) URL { return URL("https://raw.githubusercontent.com/" + path) }

// firehol returns a feed of FireHOL's collection.
func firehol(name, file, about string, use Use, private bool) Known {
	return Known{
		Name: Name(name), About: about, Page: fireholWeb + "/?ipset=" + strings.TrimSuffix(strings.TrimSuffix(file, ".netset"), ".ipset"),
		License: ofSources, Use: use, Private: private, URLs: []URL{URL(fireholWeb + "/files/" + file)}, Least: hour,
	}
}

// catalog has the known feeds, sorted by name. Each has a sample in testdata/catalog.
var catalog = []Known{
	{Name: "applebot", About: "Apple's crawler", Page: "https://support.apple.com/en-us/119829", License: noTerms, Use: Provider,
		URLs: []URL{"https://search.developer.apple.com/applebot.json"}, Format: googleRanges, Least: day},
	{Name: "atlassian", About: "Atlassian's cloud: webhooks, Bitbucket, Jira", Page: "https://support.atlassian.com/organization-administration/docs/ip-addresses-and-domains-for-atlassian-cloud-products/", License: noTerms, Use: Provider,
		URLs: []URL{"https://ip-ranges.atlassian.com/"}, Format: Format{Kind: JSON, Path: ".items[].cidr"}, Least: day},
	{Name: "aws", About: "Amazon Web Services, all ranges", Page: "https://docs.aws.amazon.com/vpc/latest/userguide/aws-ip-ranges.html", License: noTerms, Use: Provider,
		URLs: []URL{amazonURL}, Format: Format{Kind: JSON, Path: ".prefixes[].ip_prefix,.ipv6_prefixes[].ipv6_prefix"}, Least: hour},
	{Name: "aws_cloudfront", About: "Amazon CloudFront", Page: "https://docs.aws.amazon.com/vpc/latest/userguide/aws-ip-ranges.html", License: noTerms, Use: Provider,
		URLs: []URL{amazonURL}, Format: awsService("CLOUDFRONT"), Least: hour},
	{Name: "aws_ec2", About: "Amazon EC2: customers' machines", Page: "https://docs.aws.amazon.com/vpc/latest/userguide/aws-ip-ranges.html", License: noTerms, Use: Provider,
		URLs: []URL{amazonURL}, Format: awsService("EC2"), Least: hour},
	{Name: "azure", About: "Microsoft, from Azure's service tags", Page: "https://github.com/lord-alfred/ipranges", License: "CC0-1.0", Use: Provider,
		URLs: []URL{raw("lord-alfred/ipranges/main/microsoft/ipv4_merged.txt"), raw("lord-alfred/ipranges/main/microsoft/ipv6_merged.txt")}, Least: day},
	{Name: "bingbot", About: "Bing's crawler", Page: "https://www.bing.com/webmasters/help/how-to-verify-bingbot-3905dc26", License: noTerms, Use: Provider,
		URLs: []URL{"https://www.bing.com/toolbox/bingbot.json"}, Format: googleRanges, Least: day},
	{Name: "bitwire_inbound", About: "attackers, from many lists", Page: "https://github.com/bitwire-it/ipblocklist", License: "MIT", Use: Sources,
		URLs: []URL{raw("bitwire-it/ipblocklist/main/inbound.txt")}, Least: 2 * hour},
	{Name: "bitwire_outbound", About: "servers of malware and fraud", Page: "https://github.com/bitwire-it/ipblocklist", License: "MIT", Use: Both,
		URLs: []URL{raw("bitwire-it/ipblocklist/main/outbound.txt")}, Least: 2 * hour},
	{Name: "blocklist_de", About: "attackers that fail2ban reported in 48 hours, all services", Page: blocklist, License: "free, with its terms of use", Use: Sources,
		URLs: []URL{"https://lists.blocklist.de/lists/all.txt"}, Least: hour / 2},
	{Name: "blocklist_de_apache", About: "the same, attackers of web servers", Page: blocklist, License: "free, with its terms of use", Use: Sources,
		URLs: []URL{"https://lists.blocklist.de/lists/apache.txt"}, Least: hour / 2},
	{Name: "blocklist_de_mail", About: "the same, attackers of mail servers", Page: blocklist, License: "free, with its terms of use", Use: Sources,
		URLs: []URL{"https://lists.blocklist.de/lists/mail.txt"}, Least: hour / 2},
	{Name: "blocklist_de_ssh", About: "the same, attackers of SSH", Page: blocklist, License: "free, with its terms of use", Use: Sources,
		URLs: []URL{"https://lists.blocklist.de/lists/ssh.txt"}, Least: hour / 2},
	{Name: "bruteforceblocker", About: "attackers of SSH", Page: "https://danger.rulez.sk/index.php/bruteforceblocker/", License: noTerms, Use: Sources,
		URLs: []URL{"https://danger.rulez.sk/projects/bruteforceblocker/blist.php"}, Least: hour},
	{Name: "cins_army", About: "hosts with a bad score at Sentinel's sensors", Page: "https://cinsscore.com/#list", License: noTerms, Use: Sources,
		URLs: []URL{"https://cinsscore.com/list/ci-badguys.txt"}, Least: hour},
	{Name: "cloudflare", About: "Cloudflare's proxies", Page: "https://www.cloudflare.com/ips/", License: noTerms, Use: Provider,
		URLs: []URL{"https://www.cloudflare.com/ips-v4", "https://www.cloudflare.com/ips-v6"}, Least: day},
	{Name: "cymru_fullbogons", About: "networks that are assigned to no one, and special ones", Page: "https://www.team-cymru.com/bogon-networks", License: "free, with its terms of use", Use: Sources, Private: true,
		URLs: []URL{"https://www.team-cymru.org/Services/Bogons/fullbogons-ipv4.txt", "https://www.team-cymru.org/Services/Bogons/fullbogons-ipv6.txt"}, Least: 4 * hour},
	{Name: "data_shield", About: "attackers of the last two weeks", Page: "https://github.com/duggytuxy/Data-Shield_IPv4_Blocklist", License: "GPL-3.0-only", Use: Sources,
		URLs: []URL{raw("duggytuxy/Data-Shield_IPv4_Blocklist/main/prod_data-shield_ipv4_blocklist.txt")}, Least: 6 * hour},
	{Name: "digitalocean", About: "DigitalOcean, customers' machines", Page: "https://docs.digitalocean.com/platform/", License: noTerms, Use: Provider,
		URLs: []URL{"https://www.digitalocean.com/geo/google.csv"}, Format: Format{Kind: CSV, Column: "1"}, Least: day},
	{Name: "doh", About: "public servers of DNS over HTTPS", Page: "https://github.com/dibdot/DoH-IP-blocklists", License: "GPL-3.0-only", Use: Destinations,
		URLs: []URL{raw("dibdot/DoH-IP-blocklists/master/doh-ipv4.txt"), raw("dibdot/DoH-IP-blocklists/master/doh-ipv6.txt")}, Least: day},
	{Name: "dshield", About: "the twenty networks with the most attacks", Page: "https://www.dshield.org/block.txt", License: "CC-BY-NC-SA-4.0", Use: Sources,
		URLs: []URL{"https://feeds.dshield.org/block.txt"}, Format: dshieldText, Least: hour},
	{Name: "et_block", About: "Spamhaus DROP, DShield and abuse.ch, as Emerging Threats joins them", Page: "https://rules.emergingthreats.net", License: ofSources, Use: Both,
		URLs: []URL{"https://rules.emergingthreats.net/fwrules/emerging-Block-IPs.txt"}, Least: day},
	{Name: "et_compromised", About: "compromised hosts", Page: "https://rules.emergingthreats.net", License: "free, with its terms of use", Use: Sources,
		URLs: []URL{"https://rules.emergingthreats.net/blockrules/compromised-ips.txt"}, Least: day},
	{Name: "fastly", About: "Fastly's proxies", Page: "https://developer.fastly.com/reference/api/utils/public-ip-list/", License: noTerms, Use: Provider,
		URLs: []URL{"https://api.fastly.com/public-ip-list"}, Format: Format{Kind: JSON, Path: ".addresses[],.ipv6_addresses[]"}, Least: day},
	{Name: "feodo", About: "servers of botnets, by abuse.ch", Page: "https://feodotracker.abuse.ch/blocklist/", License: "CC0-1.0", Use: Both,
		URLs: []URL{"https://feodotracker.abuse.ch/downloads/ipblocklist.txt"}, Least: 5 * time.Minute},
	firehol("firehol_abusers_1d", "firehol_abusers_1d.netset", "abusers of the last day", Sources, false),
	firehol("firehol_abusers_30d", "firehol_abusers_30d.netset", "abusers of the last 30 days", Sources, false),
	firehol("firehol_anonymous", "firehol_anonymous.netset", "proxies, VPNs and Tor", Sources, false),
	firehol("firehol_level1", "firehol_level1.netset", "the worst, with few mistakes: DROP, DShield, botnets, bogons", Both, true),
	firehol("firehol_level2", "firehol_level2.netset", "attackers of the last two days", Sources, false),
	firehol("firehol_level3", "firehol_level3.netset", "attackers, spyware and viruses of the last month", Sources, false),
	firehol("firehol_level4", "firehol_level4.netset", "many more, with more mistakes", Sources, false),
	firehol("firehol_proxies", "firehol_proxies.netset", "open proxies", Sources, false),
	firehol("firehol_webclient", "firehol_webclient.netset", "servers that a web client should not talk to", Both, false),
	firehol("firehol_webserver", "firehol_webserver.netset", "clients that a web server should not talk to", Sources, false),
	{Name: "github_actions", About: "GitHub's runners", Page: githubMeta, License: noTerms, Use: Provider,
		URLs: []URL{githubURL}, Format: Format{Kind: JSON, Path: ".actions[]"}, Least: hour},
	{Name: "github_git", About: "GitHub's servers for git", Page: githubMeta, License: noTerms, Use: Provider,
		URLs: []URL{githubURL}, Format: Format{Kind: JSON, Path: ".git[]"}, Least: hour},
	{Name: "github_hooks", About: "GitHub's webhooks", Page: githubMeta, License: noTerms, Use: Provider,
		URLs: []URL{githubURL}, Format: Format{Kind: JSON, Path: ".hooks[]"}, Least: hour},
	{Name: "google", About: "all of Google, with its cloud", Page: "https://support.google.com/a/answer/10026322", License: noTerms, Use: Provider,
		URLs: []URL{"https://www.gstatic.com/ipranges/goog.json"}, Format: googleRanges, Least: day},
	{Name: "google_cloud", About: "Google Cloud, customers' machines", Page: "https://cloud.google.com/compute/docs/faq", License: noTerms, Use: Provider,
		URLs: []URL{"https://www.gstatic.com/ipranges/cloud.json"}, Format: googleRanges, Least: day},
	{Name: "googlebot", About: "Google's crawler", Page: "https://developers.google.com/search/docs/crawling-indexing/verifying-googlebot", License: noTerms, Use: Provider,
		URLs: []URL{"https://developers.google.com/static/search/apis/ipranges/googlebot.json"}, Format: googleRanges, Least: day},
	{Name: "gptbot", About: "OpenAI's crawler", Page: "https://platform.openai.com/docs/bots", License: noTerms, Use: Provider,
		URLs: []URL{"https://openai.com/gptbot.json"}, Format: googleRanges, Least: day},
	{Name: "greensnow", About: "attackers of mail, web and SSH", Page: "https://greensnow.co", License: "free, with its terms of use", Use: Sources,
		URLs: []URL{"https://blocklist.greensnow.co/greensnow.txt"}, Least: hour},
	{Name: "hagezi_tif", About: "servers of malware and fraud", Page: "https://github.com/hagezi/dns-blocklists", License: "GPL-3.0-only", Use: Destinations,
		URLs: []URL{raw("hagezi/dns-blocklists/main/ips/tif.txt")}, Least: day},
	{Name: "ipsum_3", About: "addresses on at least 3 of 30 public lists", Page: "https://github.com/stamparm/ipsum", License: "Unlicense", Use: Sources,
		URLs: []URL{raw("stamparm/ipsum/master/levels/3.txt")}, Least: day},
	{Name: "ipsum_5", About: "addresses on at least 5 of 30 public lists", Page: "https://github.com/stamparm/ipsum", License: "Unlicense", Use: Sources,
		URLs: []URL{raw("stamparm/ipsum/master/levels/5.txt")}, Least: day},
	{Name: "ipthreat_30", About: "attackers and bots with a score of at least 30", Page: "https://ipthreat.net/lists", License: "free, with its terms of use", Use: Sources,
		URLs: []URL{"https://lists.ipthreat.net/file/ipthreat-lists/threat/threat-30.txt.gz"}, Least: hour},
	{Name: "linode", About: "Linode, customers' machines", Page: "https://geoip.linode.com", License: noTerms, Use: Provider,
		URLs: []URL{"https://geoip.linode.com/"}, Format: Format{Kind: CSV, Column: "1"}, Least: day},
	{Name: "myip", About: "attackers and bad crawlers of the last ten days", Page: "https://myip.ms/browse/blacklist", License: noTerms, Use: Sources,
		URLs: []URL{"https://myip.ms/files/blacklist/general/latest_blacklist.txt"}, Least: day},
	{Name: "oracle_cloud", About: "Oracle Cloud, customers' machines", Page: "https://docs.oracle.com/en-us/iaas/Content/General/Concepts/addressranges.htm", License: noTerms, Use: Provider,
		URLs: []URL{"https://docs.oracle.com/iaas/tools/public_ip_ranges.json"}, Format: Format{Kind: JSON, Path: ".regions[].cidrs[].cidr"}, Least: day},
	{Name: "pingdom", About: "Pingdom's probes", Page: "https://documentation.solarwinds.com/en/success_center/pingdom/", License: noTerms, Use: Provider,
		URLs: []URL{"https://my.pingdom.com/probes/ipv4", "https://my.pingdom.com/probes/ipv6"}, Least: day},
	{Name: "public_dns", About: "public resolvers", Page: "https://public-dns.info", License: "CC-BY-SA-4.0", Use: Destinations,
		URLs: []URL{"https://public-dns.info/nameservers-all.txt"}, Least: day},
	{Name: "spamhaus_drop", About: "networks of criminals, not to exchange traffic with", Page: "https://www.spamhaus.org/blocklists/do-not-route-or-peer/", License: "free, with credit", Use: Both,
		URLs: []URL{"https://www.spamhaus.org/drop/drop_v4.json", "https://www.spamhaus.org/drop/drop_v6.json"}, Format: Format{Kind: Spamhaus}, Least: hour},
	{Name: "stripe_webhooks", About: "Stripe's webhooks", Page: "https://docs.stripe.com/ips", License: noTerms, Use: Provider,
		URLs: []URL{"https://stripe.com/files/ips/ips_webhooks.txt"}, Least: day},
	{Name: "telegram", About: "Telegram's networks", Page: "https://core.telegram.org/resources/cidr.txt", License: noTerms, Use: Provider,
		URLs: []URL{"https://core.telegram.org/resources/cidr.txt"}, Least: day},
	{Name: "threatview", About: "malicious addresses with high confidence", Page: "https://threatview.io", License: "free, with its terms of use", Use: Both,
		URLs: []URL{"https://threatview.io/Downloads/IP-High-Confidence-Feed.txt"}, Least: day},
	{Name: "tor_exits", About: "Tor's exit nodes", Page: "https://check.torproject.org", License: "CC0-1.0", Use: Sources,
		URLs: []URL{"https://check.torproject.org/torbulkexitlist"}, Least: hour},
	{Name: "turris_greylist", About: "attackers of Turris routers", Page: "https://view.sentinel.turris.cz", License: "CC-BY-NC-SA-4.0", Use: Sources,
		URLs: []URL{"https://view.sentinel.turris.cz/greylist-data/greylist-latest.csv"}, Format: Format{Kind: CSV, Column: "1"}, Least: day},
	{Name: "uptimerobot", About: "UptimeRobot's probes", Page: "https://uptimerobot.com/help/locations/", License: noTerms, Use: Provider,
		URLs: []URL{"https://uptimerobot.com/inc/files/ips/IPv4andIPv6.txt"}, Least: day},
	{Name: "voipbl", About: "attackers of VoIP", Page: "https://voipbl.org", License: "free, with its terms of use", Use: Sources, Private: true,
		URLs: []URL{"https://voipbl.org/update/"}, Lenient: true, Least: 4 * hour},
	{Name: "x4b_datacenter", About: "networks of datacenters and hosters", Page: "https://github.com/X4BNet/lists_vpn", License: "MIT", Use: Sources,
		URLs: []URL{raw("X4BNet/lists_vpn/main/output/datacenter/ipv4.txt"), raw("X4BNet/lists_vpn/main/output/datacenter/ipv6.txt")}, Least: day},
	{Name: "x4b_vpn", About: "networks of VPN providers", Page: "https://github.com/X4BNet/lists_vpn", License: "MIT", Use: Sources,
		URLs: []URL{raw("X4BNet/lists_vpn/main/output/vpn/ipv4.txt"), raw("X4BNet/lists_vpn/main/output/vpn/ipv6.txt")}, Least: day},
}
