"""Modules for programs and frameworks with their data in rmemcached (docs/connectors.md, docs/frameworks.md)."""
