"""What other people's programs load to keep their data in rmemcached (docs/connectors.md)."""
