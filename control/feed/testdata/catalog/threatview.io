# Threatview.io IP Blocklist
# High confidence
192.0.2.7
198.51.100.9
