# The thread: one turn waits in epoll_wait and serves what has happened, in this order: sockets and the queue, devices,
# connections that gave way, timeouts. Nothing here is for the other parts; worker.pxd has what the main thread calls.
