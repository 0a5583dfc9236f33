"""The files and block devices of ext_path: their locks, and the rules for their use."""

# Opens and locks all files, and changes no content. False: the line in `why` says why not.
cdef bint files_open(flash *f, char *why, size_t size) noexcept nogil
# Warns on stderr of files open to other users.
cdef void files_warn(flash *f) noexcept nogil
# Whether an open file is among the first `count` files of ext_path, under any name.
cdef bint is_given(flash *f, unsigned int count, const struct_stat *status) noexcept nogil
