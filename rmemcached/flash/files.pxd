"""The files and block devices of ext_path: which of them the daemon may use, and their locks."""

# Opens and locks all files, and changes nothing in a file that was there. False: the line in `why` says why not.
cdef bint files_open(flash *f, char *why, size_t size) noexcept nogil
# Says in a line on stderr which files other users can open.
cdef void files_warn(flash *f) noexcept nogil
# Whether an open file is one of the first `count` files of ext_path, by whatever name.
cdef bint is_given(flash *f, unsigned int count, const struct_stat *status) noexcept nogil
