# The thread: a turn waits in epoll_wait and serves the events in this order: sockets and the queue, devices,
# connections that gave way, timeouts. No part calls these functions; worker.pxd has the calls for the main thread.
