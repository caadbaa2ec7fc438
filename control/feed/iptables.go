package feed

import (
	"errors"
	"fmt"
	"strings"
)

var iptablesFormat = format{
	Description: Description{
		Name: "iptables", Example: "iptables", About: "rules of `iptables-save` and `ip6tables-save` that drop or reject what one address sends",
		Grammar: "`-A CHAIN -s ADDRESS -j DROP` or `REJECT` is an entry, with a comment at most. Lines that begin with `#`, tables, chains and `COMMIT` are remarks. Rules of `OUTPUT` and `POSTROUTING`, with other targets, or without `-s`, are left out. `ACCEPT` and `RETURN` of an address are bad: they are exceptions. A rule with a further condition, or with `!`, is bad: the address alone would block more.",
	},
	read: iptables,
}

// iptables reads the addresses that rules drop.
func iptables(_ *reader, c *collector) error {
	return eachLine(c, func(line int, text []byte) error {
		at, s := place{line: line}, string(text)
		words := strings.Fields(ipsetQuoted.ReplaceAllString(s, `""`))
		switch {
		case strings.ContainsAny(s[:1], "#*:") || s == "COMMIT":
			return nil
		case len(words) > 0 && strings.HasPrefix(words[0], "["): // of iptables-save -c
			words = words[1:]
		}
		if len(words) < 2 || words[0] != "-A" {
			return fmt.Errorf("%.60q is no rule: read the output of `iptables-save`", s)
		}
		source, target, further := "", "", false
		for rest := words[2:]; len(rest) > 0; {
			option, value := rest[0], ""
			if rest = rest[1:]; len(rest) > 0 {
				value = rest[0]
			}
			switch {
			case option == "-s" || option == "--source":
				source = value
			case option == "-j" || option == "--jump":
				target = value
			case option == "-m" && value == "comment", option == "--comment", option == "--reject-with" && target == "REJECT":
			default:
				further = true
				continue
			}
			rest = rest[min(1, len(rest)):]
		}
		switch {
		case words[1] == "OUTPUT" || words[1] == "POSTROUTING":
			c.leave("rules of " + words[1])
		case source != "" && (target == "ACCEPT" || target == "RETURN"):
			c.bad(at, s, errors.New("an exception: put it into an allow list"))
		case target != "DROP" && target != "REJECT":
			c.leave("rules with the target " + target)
		case source == "":
			c.leave("rules without a source")
		case further:
			c.bad(at, s, errors.New("a further condition: the address alone would block more"))
		default:
			c.span(at, s, source, 0)
		}
		return nil
	})
}
