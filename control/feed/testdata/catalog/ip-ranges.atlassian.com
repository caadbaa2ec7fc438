{"creationDate": "2026-08-22T11:00:05", "syncToken": 1787270401, "items": [
 {"network": "192.0.2.0", "mask_len": 28, "cidr": "192.0.2.0/28", "mask": "255.255.255.240", "region": ["global"], "product": ["jira"]},
 {"network": "2001:db8::", "mask_len": 48, "cidr": "2001:db8::/48", "mask": "ffff::", "region": ["eu-west-1"], "product": ["bitbucket"]}]}
