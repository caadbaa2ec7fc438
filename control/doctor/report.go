package doctor

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"regexp"
)

// Print writes findings in lines, with what mends each.
func Print(w io.Writer, all []Finding) error {
	for _, f := range Group(all) {
		where, run, set := f.Check, "", "    # in weir.yaml"
		if f.Interface != "" {
			where = f.interfaces() + ", " + where
		}
		if len(f.others) > 0 {
			run = "    # for " + f.Interface
			set += ", for " + f.Interface
		}
		text := fmt.Sprintf("%-7s  %s: %s\n", f.Level, where, f.Text)
		if f.Run != "" {
			text += "         run: " + f.Run + run + "\n"
		}
		if f.Set != "" {
			text += "         set: " + f.Set + set + "\n"
		}
		if _, err := io.WriteString(w, text); err != nil {
			return err
		}
	}
	return nil
}

var (
	urls      = regexp.MustCompile(`[a-z][a-z0-9+.-]*://[^\s"'<>` + "`" + `]+`)
	addresses = regexp.MustCompile(`[0-9A-Fa-f:.]*[:.][0-9A-Fa-f:.]*[0-9A-Fa-f:](%\w+)?(/\d+)?`)
)

// Scrub takes addresses, and what may be secret of URLs, out of a text that is shown to others:
// user, password, and what follows the host.
func Scrub(text string) string {
	text = urls.ReplaceAllStringFunc(text, func(s string) string {
		u, err := url.Parse(s)
		if err != nil || u.Host == "" {
			return "URL"
		}
		if u.Path == "" && u.RawQuery == "" && u.Fragment == "" {
			return u.Scheme + "://" + u.Host
		}
		return u.Scheme + "://" + u.Host + "/…"
	})
	return addresses.ReplaceAllStringFunc(text, func(s string) string {
		if a, err := netip.ParseAddr(s); err == nil {
			return family(a)
		}
		if p, err := netip.ParsePrefix(s); err == nil {
			return family(p.Addr()) + fmt.Sprintf("/%d", p.Bits())
		}
		if a, err := netip.ParseAddrPort(s); err == nil {
			return family(a.Addr()) + fmt.Sprintf(":%d", a.Port())
		}
		if _, err := net.ParseMAC(s); err == nil {
			return "MAC"
		}
		// The end of a sentence or of a key, or an address with a port of weir's flows.
		if n := len(s) - 1; n > 0 && (s[n] == ':' || s[n] == '.') {
			if a, err := netip.ParseAddr(s[:n]); err == nil {
				return family(a) + s[n:]
			}
		}
		return s
	})
}

func family(a netip.Addr) string {
	if a.Unmap().Is4() {
		return "IPv4"
	}
	return "IPv6"
}
