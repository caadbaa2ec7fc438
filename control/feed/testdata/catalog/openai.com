{"syncToken": "1787270401", "creationTime": "2026-08-22T13:05:01.000000", "prefixes": [
  {"ipv4Prefix": "192.0.2.0/27"},
  {"ipv6Prefix": "2001:db8:4860::/64"}
]}
