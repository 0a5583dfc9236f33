# The thread: a turn begins the sources' turns, waits in epoll_wait, gives the sources their events, and serves in this
# order: long replies, the events of connections and of the queue, sources, connections that gave way, timeouts. No part
# calls these functions; worker.pxd has the calls for the main thread.
