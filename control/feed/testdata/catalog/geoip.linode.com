# GeoIP feed, in the form of RFC 8805
# prefix,country,region,city,postal
192.0.2.0/24,US,US-TX,Richardson,
2001:db8::/64,DE,DE-HE,Frankfurt,
