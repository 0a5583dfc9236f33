# A source of a worker: work besides the events of connections, such as completions of RDMA devices. The loop
# (worker/loop) calls a source through its table, and knows no kinds of sources (docs/architecture.md, Sources). A new
# source is a structure beginning with `source`, a table, and an init function called by worker_init. Connections are no
# source: the loop itself takes the events of their descriptors, sockets or rdma_cm's, and ends lanes of ended
# connections, which outlive the last work of their source.
#
# The worker's thread alone calls the functions, from worker_main, with no lock held. They may take a lock for a moment.
# None of them waits for a peer or a disk, or enters sources.

cdef enum:
    SOURCES = 4                  # of a worker, at most

cdef struct source_calls
cdef struct source:              # the first field of a source's structure
    const source_calls *calls    # constant
    bint active                  # the source has work, or waits for work. Else the loop calls only take_events and end.
    # The worker's thread sets `active` together with the first work; serve or a later function clears it.

# The calls are in the order of a turn. Between poll and take_events the loop asks epoll.
cdef struct source_calls:
    # Begins a turn: until the next call the source does a turn's work at most. True: the last turn's work was used up,
    # and there may be more. Then the worker does not sleep in this turn, and asks epoll for others' sake.
    bint (*begin)(source *s) noexcept nogil
    # Called only before a sleep: from now on, new work makes an event of the epoll set. Returns the longest sleep in
    # milliseconds; -1: no limit; 0: there is work already, or the source polls for some. After another number the
    # worker may stay awake all the same. A polling source may yield the core here (sched_yield), to processes that are
    # about to send work.
    int (*arm)(source *s) noexcept nogil
    # Called only in a turn without sleep: looks for work, without a system call. hurry: others have work, so the source
    # looks once. True: there is something to serve.
    bint (*poll)(source *s, bint hurry) noexcept nogil
    # Takes the source's events out of the n events of epoll, known by their data (worker/events). The first call after
    # epoll_wait: nothing has ended since. Ends no connection. n may be 0 or, after a signal, -1.
    void (*take_events)(source *s, const epoll_event *events, int n) noexcept nogil
    # Serves the work of the turn: found by poll or take_events, made by connections meanwhile, or left over by the
    # last turn. Connections may end here.
    void (*serve)(source *s) noexcept nogil
    # The thread's last call. Another thread may then destroy the source.
    void (*end)(source *s) noexcept nogil
