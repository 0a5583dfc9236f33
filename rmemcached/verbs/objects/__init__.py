"""The classes and functions of rmemcached.verbs, by subject; rmemcached.verbs exports them all."""
