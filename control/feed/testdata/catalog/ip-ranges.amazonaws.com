{
  "syncToken": "1787270401",
  "createDate": "2026-08-22-20-00-01",
  "prefixes": [
    {"ip_prefix": "192.0.2.0/25", "region": "eu-west-1", "service": "AMAZON", "network_border_group": "eu-west-1"},
    {"ip_prefix": "192.0.2.0/26", "region": "eu-west-1", "service": "EC2", "network_border_group": "eu-west-1"},
    {"ip_prefix": "198.51.100.0/25", "region": "GLOBAL", "service": "CLOUDFRONT", "network_border_group": "GLOBAL"}
  ],
  "ipv6_prefixes": [
    {"ipv6_prefix": "2001:db8::/56", "region": "GLOBAL", "service": "CLOUDFRONT", "network_border_group": "GLOBAL"},
    {"ipv6_prefix": "2001:db8:1::/56", "region": "eu-west-1", "service": "EC2", "network_border_group": "eu-west-1"}
  ]
}
