# The progress thread of a context, for programs that do not poll.
#
# It serves every domain of the context. soft_context.thread_lock guards its descriptors and the list of domains; it is
# taken before any other lock.

# For a context that is opened. soft_stop_progress ends what soft_start_progress has begun.
cdef void thread_open(soft_context *context) noexcept nogil

# Makes a new domain known. False with errno set: the thread cannot watch it.
cdef bint thread_add(soft_context *context, soft_domain *domain) noexcept nogil
# When it returns the thread does not touch the domain any more.
cdef void thread_drop(soft_context *context, soft_domain *domain) noexcept nogil
