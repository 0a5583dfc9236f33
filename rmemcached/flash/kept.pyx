cdef const char *LABEL_MAGIC = b"RMCFLASH"


cdef inline size_t kept_buffers_at(unsigned int page_count) noexcept nogil:
    return KEPT_BLOCK + (page_count * sizeof(kept_page) + KEPT_BLOCK - 1) // KEPT_BLOCK * KEPT_BLOCK


cdef bint kept_open(flash *f, int fd) noexcept nogil:
    cdef size_t at = kept_buffers_at(f.page_count)
    cdef size_t length = at + WBUFS * f.config.wbuf_size
    cdef void *mapping
    # Memory not touched costs nothing.
    mapping = mmap(NULL, length, PROT_READ | PROT_WRITE,
                   MAP_SHARED if fd >= 0 else MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, fd, 0)
    if mapping == MAP_FAILED:
        return False
    f.kept = kept_map(<kept_head *>mapping, <kept_page *>(<char *>mapping + KEPT_BLOCK), <char *>mapping + at, length)
    return True


cdef void kept_close(flash *f) noexcept nogil:
    if f.kept.head != NULL:
        munmap(f.kept.head, f.kept.length)
        f.kept.head = NULL


cdef uint64_t kept_check(const kept_head *head) noexcept nogil:
    return crc32_iscsi(<unsigned char *>head, <int>(<char *>&head.check - <char *>head), CRC_START)


cdef inline uint32_t label_room(flash *f, const flash_page *p, uint32_t offset) noexcept nogil:
    return LABEL if p.offset + offset == 0 else 0


cdef bint kept_file(flash *f, const char *ending, char *out) noexcept nogil:
    if snprintf(out, KEPT_PATH, b"%s.flash%s", f.config.memory_file, ending) < KEPT_PATH:
        return True
    snprintf(f.restart.problem, sizeof(f.restart.problem), b"ext_path: the path of the memory file (-e) is too long")
    return False
