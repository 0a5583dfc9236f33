"""Accepting connections within the limit of -c, and choosing their workers. The main thread, but for admit_cm and
admit_lane."""

from rmemcached.server.layout cimport listener, server
from rmemcached.server.worker cimport worker

cdef enum:
    ACCEPT_LOOK_MS = 10          # time between two looks for room, while nothing is accepted

# Whether -c leaves room for `more` further connections.
cdef bint has_room(const server *s, unsigned int more) noexcept nogil
# Accepts until nothing is left or there is no room, and hands each socket to a worker.
cdef void accept_all(server *s, const listener *l) noexcept nogil
# Called every ACCEPT_LOOK_MS while listen_disabled is set. Accepts again if there is room, and a connection has ended
# or a second has passed.
cdef void resume_listening(server *s) noexcept nogil
# admit_fn (see devices.pxd): arg is a server. The devices' thread.
cdef worker *admit_cm(void *arg) noexcept nogil
# worker.admit_lane: arg is a server. Counts a new lane as a connection. False: -c allows no more. Any worker.
cdef bint admit_lane(void *arg) noexcept nogil
