"""What the command line decides, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

MEGABYTE = 1024 * 1024


@dataclass
class Settings:
    """Settings of one daemon. Sizes are in bytes. The defaults are memcached's."""

    port: int = 11211
    """TCP port; 0: no TCP socket; -1: one that the system chooses."""
    interfaces: list[str] = field(default_factory=list)
    """Addresses to listen on (host, host:port, [v6]:port); none: all."""
    socket_path: str | None = None
    """Path of a UNIX socket; TCP is off when it is given."""
    socket_mask: int = 0o700
    """Permission bits of the UNIX socket."""
    threads: int = 4
    max_bytes: int = 64 * MEGABYTE
    max_connections: int = 1024
    backlog: int = 1024
    requests_per_event: int = 20
    item_size_max: int = MEGABYTE
    slab_chunk_max: int = MEGABYTE // 2
    factor: float = 1.25
    chunk_size: int = 48
    use_cas: bool = True
    evict_to_free: bool = True
    flush_enabled: bool = True
    hash_power: int = 16
    hash_expand: bool = True
    lru_maintainer: bool = True
    lru_segmented: bool = True
    hot_lru_pct: int = 20
    """Percent of a class's memory that its HOT queue may have."""
    warm_lru_pct: int = 40
    hot_max_factor: float = 0.2
    """HOT's tail moves on when it is older than so much of the age of COLD's tail."""
    warm_max_factor: float = 2.0
    temp_lru: bool = False
    temporary_ttl: int = 61
    """Seconds: items that live no longer go to the TEMP queue."""
    lru_crawler: bool = True
    lru_crawler_sleep: int = 100
    """Microseconds between two items of a crawl."""
    lru_crawler_tocrawl: int = 0
    """Items a crawl looks at in each class; 0: all."""
    tail_repair_time: int = 0
    """Seconds after which a tail item whose reference leaked is freed by force; 0: never."""
    slab_reassign: bool = True
    slab_automove: int = 1
    slab_automove_ratio: float = 0.8
    slab_automove_window: int = 30
    slab_automove_freeratio: float = 0.01
    """Share of all memory that automove keeps as free pages."""
    slab_sizes: list[int] = field(default_factory=list)
    """Chunk sizes of the slab classes; none: by factor."""
    preallocate: bool = False
    """Take all memory at start (-L)."""
    track_sizes: bool = False
    """Count items by size for `stats sizes`."""
    verbose: int = 0
    debug_commands: bool = False
    """Answer debugtime and debugitem, which memcached has in its debug build only."""
    rdma: bool = True
    """Offer RDMA on the TCP port."""
    rdma_device: str | None = None
    """The system's RDMA device to serve on besides the software device; "none"; None: the first that can."""
    rdma_port: int = 0
    """Its port; 0: the first active one."""
    rdma_gid_index: int = -1
    """The port's GID; -1: the best."""
    rdma_credits: int = 16
    """Receives posted for each queue pair."""
    rdma_msgsize: int = 8192
    """Bytes of the largest SEND taken."""
    rdma_eager: int = 4096
    """Values up to this many bytes travel in SENDs."""
    rdma_ird: int = 16
    rdma_ord: int = 16
    rdma_max_qps: int = 4096
    rdma_spin: int = 50
    """Microseconds a worker polls, at most, before it sleeps after RDMA work; 0: never."""
    rdma_crc: bool = False
    """MPA CRC32c on every stream, not only where the client asks for it."""
