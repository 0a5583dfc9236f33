cdef void _hook_gone(void *arg, item *it) noexcept nogil:
    """external_storage.gone"""
    cdef item_hdr where = ITEM_get_hdr(it)
    value_gone(<flash *>arg, &where, record_length(it))


cdef bint _hook_exists(void *arg, item *it) noexcept nogil:
    """external_storage.exists"""
    cdef item_hdr where = ITEM_get_hdr(it)
    return value_exists(<flash *>arg, &where)


cdef flash *flash_create(const flash_config *config, char *why, size_t size) noexcept nogil:
    cdef flash *f = <flash *>calloc(1, sizeof(flash))
    cdef unsigned int i
    cdef bint made = True
    snprintf(why, size, b"ext_path: out of memory")
    if f == NULL:
        return NULL
    f.config = config[0]
    f.external = external_storage(f, victim_take, writer_wake, _hook_gone, _hook_exists, restart_begin, restart_header,
                                  restart_end)
    f.values = external_values(f, &f.held, flash_fetch)
    f.to_write_tail = &f.to_write
    for i in range(<unsigned int>PATHS):
        f.fds[i] = -1
    flash_cond_init(&f.compact_cond)
    io_init(f)
    made = files_open(f, why, size) and io_open(f, why, size)
    made = made and (restart_check(f, why, size) if config.memory_file != NULL else restart_without(f, why, size))
    # Makes the locks in any case, for flash_destroy.
    if not pages_init(f, f.fds) or not made or (config.memory_file == NULL and not kept_open(f, -1)):
        flash_destroy(f)
        return NULL
    if config.memory_file == NULL:
        pages_begin(f)
    files_warn(f)
    return f


cdef const external_storage *flash_external(flash *f) noexcept nogil:
    return &f.external


cdef const external_values *flash_values(flash *f) noexcept nogil:
    return &f.values


cdef bint flash_start(flash *f, store *s) noexcept nogil:
    f.store = s
    f.tuning = &store_get_config(s).flash
    return io_start(f) and compactor_start(f) and writer_start(f)


cdef void flash_stop_writing(flash *f) noexcept nogil:
    pthread_mutex_lock(&f.lock)
    relaxed_store(&f.stop_writing, 1)
    pthread_cond_broadcast(&f.space_cond)
    pthread_cond_broadcast(&f.compact_cond)
    pthread_mutex_unlock(&f.lock)
    writer_stop(f)
    compactor_stop(f)


cdef void flash_stop(flash *f) noexcept nogil:
    flash_stop_writing(f)
    io_stop(f)
    if f.config.memory_file != NULL and f.kept.head != NULL:
        # Before the store marks its file: the file system may outlive the machine.
        msync(f.kept.head, f.kept.length, MS_SYNC)


cdef void flash_destroy(flash *f) noexcept nogil:
    cdef unsigned int i
    for i in range(<unsigned int>PATHS):
        if f.fds[i] >= 0:
            close(f.fds[i])
    pages_destroy(f)
    free(f.restart.versions)
    pthread_cond_destroy(&f.compact_cond)
    io_destroy(f)
    free(f)
