"""The memory file (-e, docs/warm-restart.md): the arena's head and pages in a file, so that the next daemon finds them.

The head lies before the first page of every arena, and names all that a walker of the pages needs. Without a memory
file the head is ordinary memory, and ends with the store.

No log is needed. A store instruction that has been executed is in the file's pages, whatever ends the process, in the
order of the program; so only the compiler's order matters. An item counts if ITEM_LINKED is set, and a thread sets this
flag last. Only the end of the machine loses written bytes, on a file system that outlives the machine: then the next
daemon starts with an empty file, unless the last one had ended in order.

Failures: a `bint` is False; after memory_file_open memory_file_problem says why.
"""

cdef enum:
    HEAD_LIFE_AT = 4096         # bytes from the head to the places of the robust mutexes (direct.pxd),
    HEAD_LIVES = 1024           # ... one for each run of a daemon, by the run's number modulo so many,
    HEAD_LIFE = 64              # ... of so many bytes each
    HEAD_PAGES_AT = 128 * 1024  # bytes from the head to the classes of the pages, a byte for each page
    HEAD_BASES = 4
    HEAD_FOREIGN = 112          # different chunk sizes of foreign pages, at most
    HEAD_CRASHES = 3            # crashes in a row within HEAD_CRASH_SECONDS, after which the next start is empty
    HEAD_CRASH_SECONDS = 60
    BOOT_ID = 36                # characters of the system's boot_id

cdef struct head_run:           # constant during a run; a new run writes the other copy of arena_head.runs
    uint64_t number             # of the run, from 1
    uint64_t bases[HEAD_BASES]  # the arena's address in this run, then in earlier runs: chains may have such addresses
    int64_t process_started     # as store_clock has it
    int64_t monotonic_start
    char boot[BOOT_ID + 4]      # the system's boot_id, so that monotonic_start can be trusted
    uint32_t sizes[MAX_NUMBER_OF_SLAB_CLASSES]  # bytes of a chunk of each slab class
    uint64_t check              # XXH3 of the fields before: a copy half written counts as absent

cdef struct arena_head:
    # constant
    char magic[8]
    uint32_t version
    uint32_t head_length        # bytes from the head to the first page
    head_run runs[2]            # the copy with the larger number and a fitting check is valid
    uint64_t id                 # random, for memory_file_id; 0: not asked for yet
    char pad_after_runs[CACHE_LINE - 8]
    # relaxed atomic
    rel_time_t oldest_live      # from this time on, items last used at this time or before are invalid; 0: no flush_all
    rel_time_t current_time     # of the last store_tick
    unsigned int clean          # 1: the run has ended in order
    unsigned int hashpower      # at the last store_tick
    uint64_t arena_used         # bytes of the arena given out as pages
    # written at the start only
    int64_t starts[HEAD_CRASHES - 1]    # CLOCK_MONOTONIC seconds of the last starts after a crash; the newest first
    uint32_t foreign[HEAD_FOREIGN]  # chunk sizes of the page classes PAGE_FOREIGN + index; 0: unused
    char pad_before_cas[CACHE_LINE]
    uint64_t cas_id             # atomic: the last CAS value; written by every set
    char pad_after_cas[CACHE_LINE]

cdef struct memory_file:
    # constant after store_create
    int fd                      # locked; -1: no memory file
    bint fresh                  # the file had no items to be kept, or there is none
    uint64_t run                # the number of the copy in force in the head
    uint64_t life               # the run's number at its start: chooses the place of its robust mutex
    head_run last               # of the last run, if not fresh,
    rel_time_t last_time        # ... its clock,
    unsigned int hashpower      # ... and the power of its hash table; 0 if fresh
    bint has_holes              # some of the file's pages are not there, and need space
    bint serves                 # the start has succeeded
    # for a failed start: fields of the head from the last run
    bint was_clean              # also for a fresh file
    int64_t last_starts[HEAD_CRASHES - 1]
    # the slabs lock
    size_t reserved             # bytes of the arena for which the file system has taken space

# Opens, checks and locks the file of config.memory_file, for store_create. Without that setting does nothing. False:
# memory_file_problem says why.
cdef bint memory_file_open(store *s) noexcept nogil
cdef const char *memory_file_problem() noexcept nogil
# Takes the mark of an end in order away from a file with items, before its first change.
cdef void memory_file_claim(store *s) noexcept nogil
# Notes a new run in the head, once the arena is mapped: from now on the file belongs to this run. For memory that is
# fresh, fills in the head first.
cdef void memory_file_begin(store *s) noexcept nogil
# Notes that no chain has addresses of earlier runs any more.
cdef void memory_file_forget_bases(store *s) noexcept nogil
# Notes that so many items had values in external storage, and there is none.
cdef void memory_file_note_headers(store *s, uint64_t headers) noexcept nogil
# A line for the operator about the last start; empty: none. It stays for the next start if this start fails.
cdef const char *memory_file_note() noexcept nogil
cdef void memory_file_keep_note() noexcept nogil
# Whether a process has mapped the file since an earlier run, for direct reads. Then the pages must stay: reading a page
# that is not there would end that process when the file system is full.
cdef bint memory_file_is_watched(store *s) noexcept nogil
# Whether the machine has run without a break since the last run.
cdef bint memory_file_is_of_boot(store *s) noexcept nogil
# The file's number: external storage knows by it to which file its values belong.
cdef uint64_t memory_file_id(store *s) noexcept nogil
# This run in the head.
cdef const head_run *head_present(store *s) noexcept nogil
# Notes an end in order, or takes the note of a failed start back, for store_destroy: all threads have ended. Closes the
# file.
cdef void memory_file_end(store *s) noexcept nogil
# A read-only descriptor of the file, for clients, or -1.
cdef int memory_file_reader(store *s) noexcept nogil
# Takes space for bytes [start, end) of the arena, so that no later write fails. False: the file system is full.
cdef bint memory_file_reserve(store *s, size_t start, size_t end) noexcept nogil
# The place of this run's robust mutex.
cdef void *head_life(store *s) noexcept nogil
# The class of each page of the arena.
cdef uint8_t *head_pages(arena_head *head) noexcept nogil
# Bytes of the head of an arena of this length: whole huge pages.
cdef size_t head_bytes(size_t arena_length) noexcept nogil
