# The thread: a turn begins the sources' turns, waits in epoll_wait, gives the sources their events, and serves in this
# order: long replies, the events of connections and of the queue, sources, connections that gave way, timeouts. No
# other part calls the loop's functions; worker.pxd has the functions for the main thread.
