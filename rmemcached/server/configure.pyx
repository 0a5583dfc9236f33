"""From the Python Settings object into structures of C."""

import os

from rmemcached.server.sockets import overflow_uid
from rmemcached.settings import DIRECT_READERS, EXT_BUCKETS, EXT_IO, HASH_ALGORITHM, RESTARTS

from libc.string cimport memset

from rmemcached.flash.flash cimport io_kind
from rmemcached.protocol.conn cimport ascii_prot, binary_prot, negotiating_prot
from rmemcached.rdma.device cimport rdma_limits
from rmemcached.rdma.wire cimport RDMA_LANES_MAX
from rmemcached.streams.tls cimport tls_options, tls_verify_mode, tls_version
from rmemcached.store.store cimport MAX_NUMBER_OF_SLAB_CLASSES, flash_settings, restart_policy


cdef protocol named_protocol(name):
    return {"ascii": ascii_prot, "binary": binary_prot}.get(name, negotiating_prot)


cdef const char *text_of(bytes text) noexcept:
    """NULL for None."""
    return <const char *>text if text is not None else NULL


cdef void fill_rdma_limits(rdma_limits *out, wanted) except *:
    out.credits = wanted.rdma_credits
    out.msgsize = wanted.rdma_msgsize
    out.eager = wanted.rdma_eager
    out.ird = wanted.rdma_ird
    out.ord = wanted.rdma_ord
    out.max_qps = wanted.rdma_max_qps
    out.lanes = min(wanted.max_connections, wanted.rdma_max_lanes, RDMA_LANES_MAX)
    out.workers = wanted.threads
    out.ready_timeout = wanted.rdma_ready_timeout
    out.peer_memory = wanted.rdma_peer_memory
    out.view_bytes, out.views = wanted.rdma_view_limit or (0, 0)
    out.spin = wanted.rdma_spin
    out.spin_share = wanted.rdma_spin_share
    out.nobody = overflow_uid()
    out.crc = wanted.rdma_crc
    out.direct = DIRECT_READERS.index(wanted.rdma_direct)
    out.direct_linger = wanted.rdma_direct_linger
    out.remote = wanted.rdma_direct_remote


cdef object fill_tls(tls_options *out, wanted):
    """Returns the text behind the pointers."""
    files = [
        os.fsencode(name) if name is not None else None
        for name in (wanted.ssl_chain_cert, wanted.ssl_key or wanted.ssl_chain_cert, wanted.ssl_ca_cert,
                     wanted.ssl_ciphers)
    ]
    out.enabled = wanted.ssl_enabled
    out.chain_cert = text_of(files[0])
    out.key = text_of(files[1])
    out.ca_cert = text_of(files[2])
    out.ciphers = text_of(files[3])
    out.verify_mode = tls_verify_mode(wanted.ssl_verify_mode)
    out.key_format = wanted.ssl_keyformat
    out.min_version = tls_version(wanted.ssl_min_version)
    out.wbuf_size = wanted.ssl_wbuf_size
    out.session_cache = wanted.ssl_session_cache
    out.kernel = wanted.ssl_kernel_tls
    return files


cdef object fill_settings(settings *out, wanted):
    inter = os.fsencode(",".join(wanted.interfaces)) if wanted.interfaces else None
    path = os.fsencode(wanted.socket_path) if wanted.socket_path is not None else None
    auth = os.fsencode(wanted.auth_file) if wanted.auth_file is not None else None
    memory = os.fsencode(wanted.memory_file) if wanted.memory_file is not None else None
    spoken = wanted.protocol.encode()
    algorithm = HASH_ALGORITHM.encode()
    reason = wanted.rdma_direct_off.encode() or None
    memset(out, 0, sizeof(settings))
    out.port = wanted.port
    out.udpport = wanted.udp_port
    out.backlog = wanted.backlog
    out.inter = text_of(inter)
    out.socketpath = text_of(path)
    out.memory_file = text_of(memory)
    out.access = wanted.socket_mask
    out.binding_protocol = text_of(spoken)
    out.auth_file = text_of(auth)
    out.sasl = wanted.sasl
    out.maxconns = wanted.max_connections
    out.maxconns_fast = wanted.maxconns_fast
    out.inherited_fds = wanted.inherited_fds
    out.idle_timeout = wanted.idle_timeout
    out.read_buf_mem_limit = wanted.read_buf_mem_limit
    out.num_threads = wanted.threads
    out.num_threads_per_udp = wanted.threads if len(wanted.interfaces) < 2 else 1
    out.num_napi_ids = wanted.napi_ids
    out.reqs_per_event = wanted.requests_per_event
    out.flush_enabled = wanted.flush_enabled
    out.dump_enabled = wanted.dump_enabled
    out.logger_buf_size = wanted.logger_buf_size
    out.logger_watcher_buf_size = wanted.logger_watcher_buf_size
    out.hash_power = wanted.hash_power
    out.hash_algorithm = text_of(algorithm)
    fill_rdma_limits(&out.rdma_limits, wanted)
    out.rdma_limits.direct_off = text_of(reason)
    return inter, path, auth, memory, spoken, algorithm, reason, fill_tls(&out.tls, wanted)


cdef object fill_flash_config(flash_config *out, wanted):
    files = [os.fsencode(file) for file, _, _ in wanted.ext_paths]
    memory = os.fsencode(wanted.memory_file) if wanted.memory_file is not None else None
    memset(out, 0, sizeof(flash_config))
    out.npaths = <unsigned int>len(files)
    for index, (_, size, bucket) in enumerate(wanted.ext_paths):
        out.paths[<size_t>index].file = text_of(files[index])
        out.paths[<size_t>index].pages = size // wanted.ext_page_size
        out.paths[<size_t>index].bucket = EXT_BUCKETS.index(bucket)
    out.page_size = wanted.ext_page_size
    out.wbuf_size = wanted.ext_wbuf_size
    out.io = <io_kind><int>EXT_IO.index(wanted.ext_io)
    out.verbose = wanted.verbose != 0
    out.io_threads = wanted.ext_threads
    out.io_depth = wanted.ext_io_depth
    out.memory_file = text_of(memory)
    return files, memory


cdef void fill_flash_settings(flash_settings *out, wanted) except *:
    out.item_size = wanted.ext_item_size
    out.item_age = wanted.ext_item_age
    out.low_ttl = wanted.ext_low_ttl
    out.recache_rate = wanted.ext_recache_rate
    out.wbuf_size = wanted.ext_wbuf_size
    out.compact_under = wanted.ext_compact_under
    out.drop_under = wanted.ext_drop_under
    out.max_sleep = wanted.ext_max_sleep
    out.max_frag = wanted.ext_max_frag
    out.drop_unread = wanted.ext_drop_unread


cdef void fill_store_config(store_config *out, wanted) except *:
    memset(out, 0, sizeof(store_config))
    out.maxbytes = wanted.max_bytes
    out.item_size_max = wanted.item_size_max
    out.slab_chunk_size_max = wanted.slab_chunk_max
    out.chunk_size = wanted.chunk_size
    out.factor = wanted.factor
    for index, size in enumerate(wanted.slab_sizes[:MAX_NUMBER_OF_SLAB_CLASSES - 1]):
        out.slab_sizes[<size_t>index] = size
    out.use_cas = wanted.use_cas
    out.evict_to_free = wanted.evict_to_free
    out.preallocate = wanted.preallocate
    out.restart = <restart_policy><int>RESTARTS.index(wanted.restart)
    # memcached's test suite sets this variable.
    out.initial_malloced = int(os.environ.get("T_MEMD_INITIAL_MALLOC") or 0)
    out.nthreads = wanted.threads
    out.hashpower_init = wanted.hash_power
    out.hash_expand = wanted.hash_expand
    out.lru_maintainer = wanted.lru_maintainer
    out.lru_segmented = wanted.lru_segmented
    out.s3fifo = wanted.lru_algorithm == "s3fifo"
    out.hot_lru_pct = wanted.hot_lru_pct
    out.warm_lru_pct = wanted.warm_lru_pct
    out.hot_max_factor = wanted.hot_max_factor
    out.warm_max_factor = wanted.warm_max_factor
    out.temp_lru = wanted.temp_lru
    out.temporary_ttl = wanted.temporary_ttl
    out.lru_crawler = wanted.lru_crawler
    out.lru_crawler_sleep = wanted.lru_crawler_sleep
    out.lru_crawler_tocrawl = wanted.lru_crawler_tocrawl
    out.tail_repair_time = wanted.tail_repair_time
    out.slab_reassign = wanted.slab_reassign
    out.slab_automove = wanted.slab_automove
    out.slab_automove_ratio = wanted.slab_automove_ratio
    out.slab_automove_window = wanted.slab_automove_window
    out.slab_automove_freeratio = wanted.slab_automove_freeratio
    out.huge_pages = wanted.huge_pages
    out.direct = wanted.rdma_direct != "off" or wanted.rdma_direct_remote
    out.direct_linger = wanted.rdma_direct_linger
    out.direct_remote = wanted.rdma_direct_remote
    out.track_sizes = wanted.track_sizes
    fill_flash_settings(&out.flash, wanted)
