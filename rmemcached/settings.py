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
    verbose: int = 0
    rdma: bool = True
    """Offer RDMA on the TCP port."""
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
