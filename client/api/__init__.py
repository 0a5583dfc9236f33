"""Clients and clusters, pipelines and views, and the connections on which their calls work."""
