"""Completion channels: how a program waits, or polls, for all completion queues of a channel. soft.pxd declares the
calls for programs."""

cdef struct soft_channel:
    ibv_comp_channel ibv             # fd: the domain's epoll set, or its eventfd once joined; refcnt counts CQs, atomic
    soft_domain domain

# Entries of the provider's table: libibverbs' ibv_* functions.
cdef ibv_comp_channel *soft_create_comp_channel(ibv_context *context) noexcept nogil
cdef int soft_destroy_comp_channel(ibv_comp_channel *channel) noexcept nogil
