"""The decisions of the command line, as plain data."""

from __future__ import annotations

MEGABYTE = 1024 * 1024
VIEWS = 4096
"""The number of items pinned for clients' views at most, without a number in -o rdma_view_limit."""
RESTARTS = ("auto", "always", "fresh")
"""What a start does with the items of a memory file: the numbers of restart_policy (store.pxd)."""
DIRECT_READERS = ("off", "own", "all")
"""Values of rdma_direct."""
DIRECT_OFF = {
    "rdma_direct": "the server was started with -o rdma_direct=off",
    "shared_memory": "there is no shared memory, or none for items",
    "-s": "the socket has a file, by which others may come: -o rdma_direct=all lets them read",
    "rdma_shm": "the socket has a file, by which others may come: -o rdma_direct=all lets them read",
    "-Y": "-Y asks for a password: -o rdma_direct=own lets clients with it read",
    "-S": "-S asks for a password: -o rdma_direct=own lets clients with it read",
    "-X": "-X keeps keys from clients: -o rdma_direct=own shows them to the daemon's own user",
    "overcommit_memory": "vm.overcommit_memory is 2, so that pages may be missing where clients read",
}
"""Why no client on this host has direct reads, by the word in `stats rdma`."""
EXT_IO = ("auto", "threads", "uring")
"""Who reads values on flash, in the order of the engine's numbers (io_kind)."""
EXT_BUCKETS = ("default", "compact", "chunked", "lowttl", "coldcompact", "old")
"""Names of ext_path for the buckets of pages, in the order of their numbers."""
HASH_ALGORITHM = "xxh3"
"""The hash function of keys (store_hash), whatever -o hash_algorithm asks for."""


# Not a dataclass: importing that module would take the daemon 10 ms and 2 MB.
class Settings:
    """Settings of a daemon. Sizes are in bytes. The defaults are memcached's."""

    def __init__(self) -> None:
        self.interfaces = []
        self.slab_sizes = []
        self.ext_paths = []

    port: int = 11211
    """TCP port; 0: no TCP socket; -1: the system chooses."""
    udp_port: int = 0
    """UDP port; 0: no UDP; -1: the system chooses."""
    interfaces: list[str]
    """Addresses to listen on, as -l has them ([proto[..]:][tag[..]:]host[:port]); none: all."""
    protocol: str = "auto-negotiate"
    """The protocol of interfaces without a prefix: ascii, binary or auto-negotiate."""
    socket_path: str | None = None
    """Path of a UNIX socket; TCP is off when it is given."""
    socket_mask: int = 0o700
    """Permission bits of the UNIX socket."""
    threads: int = 4
    max_bytes: int = 64 * MEGABYTE
    memory_file: str | None = None
    restart: str = "auto"
    max_connections: int = 1024
    inherited_fds: int = 3
    """Descriptors open at the start: the standard streams and inherited ones. As in memcached, they count for
    max_connections."""
    maxconns_fast: bool = True
    """Refuse connections beyond max_connections with an error; else they wait in the kernel's queue."""
    idle_timeout: int = 0
    """Seconds of silence after which a connection over TCP or RDMA is closed; 0: never."""
    napi_ids: int = 0
    """Receive queues of the network card to choose the worker by; 0: in turn."""
    sock_cookie_id: int = 0
    """SO_MARK of the listening sockets; 0: none."""
    read_buf_mem_limit: int = 0
    """Bytes that read buffers and replies may take; 0: no limit."""
    backlog: int = 1024
    requests_per_event: int = 20
    item_size_max: int = MEGABYTE
    slab_chunk_max: int = MEGABYTE // 2
    factor: float = 1.25
    chunk_size: int = 48
    use_cas: bool = True
    evict_to_free: bool = True
    flush_enabled: bool = True
    dump_enabled: bool = True
    watch_enabled: bool = True
    """Answer watch (-W: do not)."""
    logger_buf_size: int = 64 * 1024
    """Bytes of log entries that one thread may be ahead of the logger thread (-o worker_logbuf_size, in KB there)."""
    logger_watcher_buf_size: int = 256 * 1024
    """Bytes of log lines that wait for one watcher (-o watcher_logbuf_size, in KB there)."""
    shutdown_command: bool = False
    auth_file: str | None = None
    """File of user:password lines; clients must authenticate."""
    sasl: bool = False
    """Clients must authenticate by SASL in the binary protocol (-S)."""
    prefix_delimiter: str = ":"
    detail_enabled: bool = False
    """Count commands by the key's prefix from the start."""
    lock_memory: bool = False
    coredumps: bool = False
    drop_privileges: bool = False
    """The process gives up the right to gain privileges by executing programs."""
    hash_power: int = 0
    """The hash table starts with two to this power buckets; 0: the store's default."""
    hash_expand: bool = True
    lru_maintainer: bool = True
    lru_segmented: bool = True
    lru_algorithm: str = "segmented"
    """The eviction algorithm: "segmented", memcached's segmented LRU, or "s3fifo", S3-FIFO."""
    hot_lru_pct: int = 20
    """Percent of a class's memory that its HOT queue may have."""
    warm_lru_pct: int = 40
    hot_max_factor: float = 0.2
    """The tail of HOT moves on once its age exceeds this factor times the age of COLD's tail."""
    warm_max_factor: float = 2.0
    temp_lru: bool = False
    temporary_ttl: int = 61
    """With temp_lru, items with a life of at most so many seconds go to the TEMP queue."""
    lru_crawler: bool = True
    lru_crawler_sleep: int = 100
    """Microseconds of sleep after each 1000 items of a crawl."""
    lru_crawler_tocrawl: int = 0
    """Items a crawl looks at in each LRU queue; 0: all."""
    tail_repair_time: int = 0
    """Seconds after which a tail item whose reference leaked is freed by force; 0: never."""
    slab_reassign: bool = True
    slab_automove: int = 1
    slab_automove_ratio: float = 0.8
    slab_automove_window: int = 10
    slab_automove_freeratio: float = 0.01
    """Share of all memory that automove keeps as free pages with ext_paths; else without effect, as in memcached."""
    slab_sizes: list[int]
    """Chunk sizes of the slab classes; none: by factor."""
    preallocate: bool = False
    """Take all memory at start (-L)."""
    huge_pages: bool = True
    """Items get memory pages of 2 MB, where items fill whole pages."""
    track_sizes: bool = False
    """Count items by size for `stats sizes`."""
    ext_paths: list[tuple[str, int, str]]
    """Files for values, with their sizes and buckets (EXT_BUCKETS); none: all values stay in memory."""
    ext_page_size: int = 64 * MEGABYTE
    ext_threads: int = 1
    """Threads that read values."""
    ext_io_depth: int = 1
    """Reads that a thread takes at once."""
    ext_io: str = "auto"
    """Who reads: those threads, or a thread with many reads by io_uring (EXT_IO)."""
    ext_item_size: int = 512
    """Bytes; smaller items stay in memory. This and the next settings are of storage on flash."""
    ext_item_age: int = 2**32 - 1
    """Seconds without use, after which an item goes to flash."""
    ext_low_ttl: int = 0
    """Items with a life of fewer seconds go to pages of their own."""
    ext_recache_rate: int = 2000
    """One of so many hits on flash brings its item back to memory; 0: none."""
    ext_wbuf_size: int = 4 * MEGABYTE
    ext_compact_under: int = 0
    """Compact pages while fewer pages are free."""
    ext_drop_under: int = 0
    """Drop items in place of moving them while fewer pages are free."""
    ext_max_sleep: int = 1000000
    """Microseconds between two looks for items to write, at most."""
    ext_max_frag: float = 0.8
    """Pages with a smaller share in use are compacted."""
    ext_drop_unread: bool = False
    """Compaction drops items never read."""
    verbose: int = 0
    ssl_enabled: bool = False
    """TLS on all TCP ports (-Z), except on interfaces with the prefix notls."""
    ssl_chain_cert: str | None = None
    """File with the server's certificate, and behind it the certificates up to the CA's, in PEM."""
    ssl_key: str | None = None
    """File of the private key; None: in ssl_chain_cert."""
    ssl_ca_cert: str | None = None
    """File with the CAs of clients' certificates."""
    ssl_verify_mode: int = 0
    """Client certificates: 0: none, 1: checked if there is a certificate, 2 and 3: required."""
    ssl_keyformat: int = 1
    """The format of ssl_key: 1: PEM, 2: DER."""
    ssl_ciphers: str | None = None
    """OpenSSL's list of ciphers for TLS 1.2 and before; None: OpenSSL's own."""
    ssl_min_version: int = 2
    """The least version of TLS: 0 to 3 for 1.0 to 1.3."""
    ssl_wbuf_size: int = 16 * 1024
    """Bytes of short replies that are gathered before they are encrypted, at most a record of 16 KB at a time."""
    ssl_session_cache: bool = False
    ssl_kernel_tls: bool = False
    """The kernel encrypts, if the kernel can (kTLS)."""
    debug_commands: bool = False
    """Answer debugtime and debugitem, which memcached has in its debug build only."""
    rdma: bool = True
    """Offer RDMA on the TCP port, and shared memory to clients on this host."""
    rdma_device: str | None = None
    """The system's RDMA device, served besides the software devices; "none"; None: the first usable device."""
    rdma_port: int = 0
    """The port of rdma_device; 0: its first active port."""
    rdma_gid_index: int = -1
    """The port's GID; -1: the best."""
    rdma_cm_port: int = 0
    """Port of rdma_cm, on the addresses of the TCP port; 0: none."""
    rdma_shm: str | None = None
    """The UNIX socket for shared-memory clients; "none"; None: an abstract socket, for this user and root only."""
    rdma_credits: int = 16
    """Receives posted for each queue pair."""
    rdma_msgsize: int = 8192
    """Bytes of the largest SEND taken."""
    rdma_eager: int = 4096
    """Values up to this many bytes travel in SENDs."""
    rdma_ird: int = 16
    rdma_ord: int = 16
    rdma_max_qps: int = 4096
    rdma_max_lanes: int = 65536
    """Lanes of each queue pair, at most."""
    rdma_ready_timeout: int = 10
    """Seconds from the exchange to READY, after which a queue pair is given up."""
    rdma_peer_memory: int = 4096
    """Megabytes of memory of soft_shm's clients that are mapped, at most."""
    rdma_direct: str = "own"
    """The clients on this host with direct reads (docs/direct-reads.md). "own": of the daemon's user and of root, over
    the abstract socket; "all": every client admitted by the socket's permissions; "off": none."""
    rdma_direct_off: str = ""
    """Why rdma_direct is off: a name of DIRECT_OFF."""
    rdma_direct_linger: int = 60
    """The daemon keeps the index of direct reads for so many seconds after their last client."""
    rdma_direct_remote: bool = False
    """Clients of soft_iw and of RDMA devices read items themselves, by RDMA READs."""
    rdma_view_limit: tuple[int, int] | None = None
    """Limits on items pinned for views: bytes and number. None: no views."""
    rdma_spin: int = 50
    """The worker polls through gaps of up to so many microseconds between RDMA requests; 0: the worker never polls."""
    rdma_spin_share: int = 100
    """Percent of a worker's time that it polls, at most."""
    rdma_cleartext: bool = False
    """Clients of TLS may have RDMA on the network that is not encrypted: over devices, or if they ask for no TLS."""
    rdma_crc: bool = False
    """MPA CRC32c on every stream, not only where the client asks for it."""


OF_DEVICE = ("rdma_device", "rdma_port", "rdma_gid_index", "rdma_cm_port")
"""Options without effect unless the system has an RDMA device."""


def of_device(settings: Settings) -> list[str]:
    """The options of OF_DEVICE with a value, except rdma_device=none."""
    given = [name for name in OF_DEVICE if getattr(settings, name) != getattr(Settings, name)]
    return [name for name in given if getattr(settings, name) != "none"]
