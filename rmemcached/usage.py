"""The text of -h. memcached's test suite greps the text for names of features: only features built in may be named."""

from __future__ import annotations

from rmemcached import VERSIONS
from rmemcached.server.authfile import MAX_ENTRIES
from rmemcached.settings import EXT_BUCKETS, HASH_ALGORITHM, MEGABYTE, VIEWS, Settings

USAGE = """\
{versions}
Usage: rmemcached [options]      (numbers in brackets: defaults)

Where to listen
-p, --port=<num>          TCP port [{d.port}]; 0: no TCP; -1: a free one
-U, --udp-port=<num>      UDP port [{d.udp_port}: no UDP]
-s, --unix-socket=<file>  UNIX socket in place of TCP and UDP, for shared memory too
-a, --unix-mask=<mask>    permissions of the UNIX sockets, in octal [{d.socket_mask:o}]
-l, --listen=<addr>       address to listen on [all]: host, host:port, [ipv6]:port, several of
                          them separated by commas, or -l more than once. Before an address,
                          proto[ascii]: proto[binary]: or proto[negotiating]: say what is
                          spoken there, and tag[name]: (or tag_name_:) names it. With -Z, in front
                          of all: notls:, btls: (no client certificate), mtls: (one is required)
-Z, --enable-ssl          TLS on all TCP ports: ssl_chain_cert and the options below it
-B, --protocol=<name>     what is spoken everywhere: ascii, binary or auto [auto]
-b, --listen-backlog=<num> length of the kernel's queue of new connections [{d.backlog}]
-c, --conn-limit=<num>    simultaneous connections, at most [{d.max_connections}]

Memory and items
-m, --memory-limit=<num>  megabytes for items [{megabytes}]
-M, --disable-evictions   when memory is full, answer with an error in place of evicting
-I, --max-item-size=<num> size of the largest item, with k or m behind it [{item_megabytes}m; from 1k to 1024m]
-f, --slab-growth-factor=<num> size of a slab class's chunks, as a multiple of the class before's [{d.factor}]
-n, --slab-min-size=<num> bytes for key, value and flags in the smallest chunk [{d.chunk_size}]
-L, --enable-largepages   take all memory at the start, in huge pages
-k, --lock-memory         lock the process's memory into RAM
-C, --disable-cas         items without CAS values: 8 bytes less each
-e, --memory-file=<file>  keep the items in this file, on a tmpfs: the next daemon has them again

What clients may do
-A, --enable-shutdown     accept "shutdown"
-F, --disable-flush-all   refuse "flush_all"
-X, --disable-dumping     refuse "stats cachedump", "stats detail", "lru_crawler metadump" and "mgdump"
-W, --disable-watch       refuse "watch"
-Y, --auth-file=<file>    clients first authenticate, with a "set" whose value is "user password".
                          The file has up to {users} lines of the form user:password; SIGHUP reads it again
-S, --enable-sasl         turn on Sasl authentication, in the binary protocol, by libsasl2: memcached.conf
                          in /etc/sasl2 or in the folder of the environment's SASL_CONF_PATH, or a file of
                          user:password lines named by MEMCACHED_SASL_PWDB. Without -B, an authenticated
                          client may go on with text

The process
-t, --threads=<num>       worker threads [{d.threads}]
-R, --max-reqs-per-event=<num> commands of one connection before others have their turn [{d.requests_per_event}]
-N, --napi-ids=<num>      choose a connection's worker by the receive queue of the network card;
                          the number of these queues
-d, --daemon              go to the background, and to the folder / (where -P and -Y look for a
                          file without a folder)
-P, --pidfile=<file>      write the process id there (removed at the end with -d)
-u, --user=<user>         become that user (needed when started by root)
-r, --enable-coredumps    core files as large as allowed
-v, --verbose             errors and warnings on stderr; -vv: commands and replies, -vvv: states
-D <char>                 delimiter between the prefix and the rest of a key [{d.prefix_delimiter}]; switches on
                          "stats detail"
-h, --help                this text
-i, --license             the license
-V, --version             the version
-o, --extended=<list>     more options, separated by commas:
   maxconns_fast, no_maxconns_fast   refuse connections beyond -c at once [yes], or let them wait
   hashpower=<n>          the hash table starts with 2^n buckets [16]
   no_hashexpand          ... and never grows
   hash_algorithm=<name>  jenkins, murmur3 or xxh3: accepted without effect; the hash function is {hash}
   idle_timeout=<s>       close TCP and RDMA connections whose peers send and take nothing for so long\
 [{d.idle_timeout}: never]
   read_buf_mem_limit=<mb> megabytes for connections' buffers, for all threads together\
 [{d.read_buf_mem_limit}: no limit]
   lru_maintainer, no_lru_maintainer   the segmented LRU and its thread [on]
   lru_algorithm=<name>   what is evicted: segmented, memcached's LRU, or s3fifo [{d.lru_algorithm}]
   hot_lru_pct=<n>, warm_lru_pct=<n>   percent of a class's memory for HOT\
 [{d.hot_lru_pct}] and WARM [{d.warm_lru_pct}]
   hot_max_factor=<x>, warm_max_factor=<x>   items leave at so many times the age of COLD's tail\
 [{d.hot_max_factor}, {d.warm_max_factor}]
   temporary_ttl=<s>      items that live no longer than this have a queue of their own [none]
   lru_crawler, no_lru_crawler   the thread that frees expired items [on]
   lru_crawler_sleep=<us>, lru_crawler_tocrawl=<n>   its pause per 1000 items\
 [{d.lru_crawler_sleep}], items per LRU queue [{d.lru_crawler_tocrawl}: all]
   tail_repair_time=<s>   free items whose references leaked after so many seconds [{d.tail_repair_time}: never]
   slab_reassign, no_slab_reassign   pages may move between classes [yes]
   slab_automove=<0|1|2>, no_slab_automove   ... by themselves [{d.slab_automove}]
   slab_automove_ratio=<x>, slab_automove_window=<n>   thresholds for that\
 [{d.slab_automove_ratio}, {d.slab_automove_window}]
   slab_automove_freeratio=<x>   share of memory that stays free [{d.slab_automove_freeratio}]
   slab_chunk_max=<kb>    size of the largest chunk; larger items are chains of chunks [{chunk_kilobytes}]
   slab_sizes=<a-b-c>     sizes of the slab classes, in place of -f
   no_chunked_items       the largest chunk is a whole page
   huge_pages, no_huge_pages   items get memory pages of 2 MB where they fill them [yes]
   track_sizes            count items by size for "stats sizes"
   ext_path=<path>        keep values there: file:size, the size with m, g, t or p, or file:size:bucket. Several
                          ext_path make a storage of several files. The pages of a file with a bucket
                          are for this bucket: {ext_buckets}
                          [none: all values stay in memory]
   ext_page_size=<mb>, ext_wbuf_size=<mb>   pages [{ext_page_megabytes}], write buffers [{ext_wbuf_megabytes}]
   ext_threads=<n>, ext_io_depth=<n>   reading threads [{d.ext_threads}], reads taken by each at once [{d.ext_io_depth}]
   ext_io=<who>           who reads: the threads, or uring: a thread with many reads by io_uring, if the kernel
                          allows it; auto [{d.ext_io}]
   ext_item_size=<n>, ext_item_age=<s>   values of larger items leave memory [{d.ext_item_size}], of items not
                          used for so long [when memory is short]
   ext_low_ttl=<s>        values with less time to live have their own pages [{d.ext_low_ttl}]
   ext_recache_rate=<n>   one of so many fetches of popular values brings the value back [{d.ext_recache_rate}]
   ext_compact_under=<n>, ext_drop_under=<n>   with fewer free pages: compact, drop values [1 % of the pages]
   ext_max_frag=<x>, ext_drop_unread   compact pages filled less than this [{d.ext_max_frag}]; drop values that
                          nobody has fetched
   ext_max_sleep=<us>     sleep of the thread that writes [{d.ext_max_sleep}]
   restart=<what>         what a start with -e does with the items: always keep them, start fresh, or auto: keep
                          them, but not after three crashes within a minute [{d.restart}]
   watcher_logbuf_size=<kb>, worker_logbuf_size=<kb>   buffers of "watch" [{watcher_kilobytes}, {worker_kilobytes}]
   sock_cookie_id=<n>     mark of the listening sockets, for packet filters
   ssl_chain_cert=<file>  with -Z: the server's certificate and its chain, in PEM
   ssl_key=<file>         its private key [in ssl_chain_cert]
   ssl_keyformat=<1|2>    format of ssl_key: 1: PEM, 2: DER [{d.ssl_keyformat}]
   ssl_ca_cert=<file>     the CAs of clients' certificates, in PEM [none]
   ssl_verify_mode=<n>    client certificates: 0: none, 1: checked if there is one, 2, 3: required\
 [{d.ssl_verify_mode}]
   ssl_ciphers=<list>     ciphers of TLS 1.2, as OpenSSL names them [OpenSSL's]
   ssl_min_version=<n>    least version of TLS: 0 to 3 for 1.0 to 1.3 [{d.ssl_min_version}]
   ssl_session_cache      clients may resume sessions of TLS 1.2 by their number [no]
   ssl_kernel_tls         the kernel encrypts, if it can [no]
   ssl_wbuf_size=<kb>     short replies gathered before they are encrypted [{wbuf_kilobytes}]
   modern, no_modern      today's defaults, or those of memcached 1.4
   rdma, no_rdma          offer RDMA on the TCP port, and shared memory on this host [yes]
   rdma_device=<name>     libibverbs device to serve on besides the software ones; none: none [the first]
   rdma_shm=<file>        UNIX socket where clients come for shared memory, with the permissions of -a;
                          none: no shared memory [for the daemon's user and root only, without a file]
   rdma_port=<n>          port of rdma_device [the first active one]
   rdma_cm_port=<n>       port for clients that connect through rdma_cm, on the same addresses [none]
   rdma_gid_index=<n>     GID of rdma_device [RoCE v2 with an IPv4 address before others]
   rdma_eager=<n>         values up to so many bytes travel in SENDs [{d.rdma_eager}]
   rdma_credits=<n>       receives posted for each queue pair [{d.rdma_credits}]
   rdma_msgsize=<n>       bytes of each [{d.rdma_msgsize}]
   rdma_max_qps=<n>       queue pairs of each device at most [{d.rdma_max_qps}]
   rdma_max_lanes=<n>     Clients that share a queue pair at most [as -c allows]
   rdma_ready_timeout=<s> seconds in which a queue pair must get ready after its exchange [{d.rdma_ready_timeout}]
   rdma_peer_memory=<mb>  memory of soft_shm's clients that is mapped, at most, a quarter of it for a queue
                          pair; the clients pay for it. 0: large values go through rings [{d.rdma_peer_memory}]
   rdma_direct=<who>      clients of soft_shm that read items without asking: own, all or off. own: clients of the
                          daemon's user and of root, who can read its memory anyway; all: clients admitted by rdma_shm
                          or -s [own; off with -Y, -X, -s, rdma_shm=<file>, vm.overcommit_memory=2]
   rdma_direct_linger=<s> seconds after the last such client in which their index stays [{d.rdma_direct_linger}]
   rdma_direct_remote     clients of soft_iw and of RDMA devices may, by RDMA READs [no]
   rdma_view_limit=<mb>[:<n>] unless rdma_direct is off: limits on items pinned for clients' views: bytes, and
                          number; a quarter of both for a connection. 0: no views [a quarter of -m:{views}]
   rdma_spin=<us>         longest gap between RDMA requests that a worker polls through [{d.rdma_spin}]
   rdma_spin_share=<n>    percent of its time that a worker polls, at most [{d.rdma_spin_share}]
   rdma_cleartext         with -Z: clients may have RDMA that is not encrypted, as devices' is [no]
   rdma_crc, no_rdma_crc  CRC32c on every iWARP stream [where the client asks]
   debug_commands         answer debugtime and debugitem, for tests
"""


def usage() -> str:
    """The text with this version's defaults."""
    defaults = Settings()
    return USAGE.format(
        versions=VERSIONS,
        hash=HASH_ALGORITHM,
        d=defaults,
        views=VIEWS,
        users=MAX_ENTRIES,
        megabytes=defaults.max_bytes // MEGABYTE,
        item_megabytes=defaults.item_size_max // MEGABYTE,
        chunk_kilobytes=defaults.slab_chunk_max // 1024,
        watcher_kilobytes=defaults.logger_watcher_buf_size // 1024,
        worker_kilobytes=defaults.logger_buf_size // 1024,
        ext_buckets=", ".join(EXT_BUCKETS),
        ext_page_megabytes=defaults.ext_page_size // MEGABYTE,
        ext_wbuf_megabytes=defaults.ext_wbuf_size // MEGABYTE,
        wbuf_kilobytes=defaults.ssl_wbuf_size // 1024,
    )
