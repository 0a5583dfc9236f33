"""The progress thread of a context, for programs that do not poll.

The thread serves every domain of the context. It polls for as long as polling has lately paid, then sleeps in
epoll_wait. Its epoll set has the domains' descriptors, edge-triggered. A descriptor stays readable while the program
has not fetched an event, and does not wake the thread again. So after each wake-up the thread goes on until no work is
left.

soft_context.thread_lock guards the thread's descriptors and the list of domains. The order of locks begins with this
lock.
"""

# Prepares the thread of a context being opened. soft_start_progress (soft.pxd) starts the thread itself.
cdef void thread_open(soft_context *context) noexcept nogil

# Adds a new domain to the context's list, for domain_open. False with errno: the running thread cannot watch the
# domain.
cdef bint thread_add(soft_context *context, soft_domain *domain) noexcept nogil
# Takes the domain off the list, for domain_close. After the return the thread does not touch the domain any more.
cdef void thread_drop(soft_context *context, soft_domain *domain) noexcept nogil
