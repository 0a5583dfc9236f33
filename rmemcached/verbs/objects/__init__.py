"""The classes and functions of rmemcached.verbs, by subject; that package has them all."""
