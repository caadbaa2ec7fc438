{
  "verifiable_password_authentication": false,
  "ssh_key_fingerprints": {"SHA256_ED25519": "x"},
  "domains": {"website": ["*.github.com"]},
  "hooks": ["192.0.2.0/30", "2001:db8::/48"],
  "git": ["192.0.2.4/30", "2001:db8:1::/48"],
  "actions": ["192.0.2.8/29", "2001:db8:2::/48"]
}
