{"last_updated_timestamp": "2026-08-20T18:31:03.041000", "regions": [
 {"region": "eu-frankfurt-1", "cidrs": [{"cidr": "192.0.2.0/26", "tags": ["OCI"]}, {"cidr": "198.51.100.0/28", "tags": ["OSN", "OBJECT_STORAGE"]}]}]}
