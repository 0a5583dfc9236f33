"""The command line against memcached 1.6.45's: the same words are refused, with its line and its exit status."""

from __future__ import annotations

import shlex

import pytest

from rmemcached.cli import main
from rmemcached.options import parse

# (words, exit status, standard error) of memcached 1.6.45.
REFUSED = [
    ("-m 0", 64, "Cannot set item size limit higher than 1/2 of memory max.\n"),
    ("-m 1", 64, "Cannot set item size limit higher than 1/2 of memory max.\n"),
    ("-m", 1, "memcached: option requires an argument -- 'm'\nIllegal argument \"?\"\n"),
    ("-I 0", 64, "Item max size cannot be less than 1024 bytes.\n"),
    ("-I 1023", 64, "Item max size cannot be less than 1024 bytes.\n"),
    ("-I 1024", 64, "slab_chunk_max (bytes: 524288) cannot be larger than -I (item_size_max 1024)\n"),
    ("-I 1k", 64, "slab_chunk_max (bytes: 524288) cannot be larger than -I (item_size_max 1024)\n"),
    ("-I 1025m", 64, "Cannot set item size limit higher than 1/2 of memory max.\n"),
    ("-I 1m -m 1", 64, "Cannot set item size limit higher than 1/2 of memory max.\n"),
    ("-I 33m -m 64", 64, "Cannot set item size limit higher than 1/2 of memory max.\n"),
    ("-I 768k", 64, "-I (item_size_max: 786432) must be evenly divisible by slab_chunk_max (bytes: 524288)\n"),
    ("-c 0", 1, "Maximum connections must be greater than 0\n"),
    ("-c -1", 1, "Maximum connections must be greater than 0\n"),
    ("-c x", 1, "Maximum connections must be greater than 0\n"),
    ("-t 0", 1, "Number of threads must be greater than 0\n"),
    ("-t -1", 1, "Number of threads must be greater than 0\n"),
    ("-t x", 1, "Number of threads must be greater than 0\n"),
    ("-R 0", 1, "Number of requests per event must be greater than 0\n"),
    ("-R -5", 1, "Number of requests per event must be greater than 0\n"),
    ("-R x", 1, "Number of requests per event must be greater than 0\n"),
    ("-f 1", 1, "Factor must be greater than 1\n"),
    ("-f 1.0", 1, "Factor must be greater than 1\n"),
    ("-f 0.5", 1, "Factor must be greater than 1\n"),
    ("-f x", 1, "Factor must be greater than 1\n"),
    ("-n 0", 1, "Chunk size must be greater than 0\n"),
    ("-n -8", 1, "Chunk size must be greater than 0\n"),
    ("-n x", 1, "Chunk size must be greater than 0\n"),
    ("-B text", 64, "Invalid value for binding protocol: text\n -- should be one of auto, binary, or ascii\n"),
    ("-D", 1, "memcached: option requires an argument -- 'D'\nIllegal argument \"?\"\n"),
    ("-N 0", 1, "Maximum number of NAPI IDs must be greater than 0\n"),
    ("-N 5 -t 4", 64, "Number of napi_ids(5) cannot be greater than number of threads(4)\n"),
    (
        "-Y /dev/null -B binary",
        64,
        "ERROR: You cannot allow the BINARY protocol while using ascii authentication tokens.\n",
    ),
    ("-Y /dev/null -U 5", 64, "Cannot use UDP with ascii authentication enabled (-U 0 to disable)\n"),
    ("-z", 1, "memcached: invalid option -- 'z'\nIllegal argument \"?\"\n"),
    ("-q 1", 1, "memcached: invalid option -- 'q'\nIllegal argument \"?\"\n"),
    ("--nosuch", 1, "memcached: unrecognized option '--nosuch'\nIllegal argument \"?\"\n"),
    ("--threads", 1, "memcached: option '--threads' requires an argument\nIllegal argument \"?\"\n"),
    ("--threads=0", 1, "Number of threads must be greater than 0\n"),
    ("--disable-cas=1", 1, "memcached: option '--disable-cas' doesn't allow an argument\nIllegal argument \"?\"\n"),
    ("--enable", 1, "memcached: option '--enable' is ambiguous\nIllegal argument \"?\"\n"),
    ("--disable", 1, "memcached: option '--disable' is ambiguous\nIllegal argument \"?\"\n"),
    ("-o nosuch", 1, 'Illegal suboption "nosuch"\n'),
    ("-o nosuch=1", 1, 'Illegal suboption "nosuch=1"\n'),
    ("-o ,", 1, 'Illegal suboption ","\n'),
    ("-o modern,,track_sizes", 1, 'Illegal suboption ",track_sizes"\n'),
    ("-o modern,nosuch", 1, 'Illegal suboption "nosuch"\n'),
    ("-o rdma_peer_memory=4g", 1, "rdma_peer_memory must be a number without a unit, not '4g'\n"),
    ("-o rdma_ready_timeout=1.5", 1, "rdma_ready_timeout must be a number without a unit, not '1.5'\n"),
    ("-o rdma_max_lanes=65537", 1, "rdma_max_lanes must be between 1 and 65536, not 65537\n"),
    ("-o rdma_direct=no", 1, "rdma_direct must be own, all or off, not 'no'\n"),
    ("-o rdma_direct_linger=86401", 1, "rdma_direct_linger must be between 0 and 86400, not 86401\n"),
    ("-o rdma_max_qps=0", 1, "rdma_max_qps must be between 1 and 1048576, not 0\n"),
    *(
        (f"-o {name}={value}", 1, f"{name} takes no value, but has '{value}': leave it out to keep the default\n")
        for name, value in (
            ("rdma_direct_remote", "0"),
            ("no_rdma", "yes"),
            ("rdma", ""),
            ("debug_commands", "no"),
            ("huge_pages", "no"),
            ("no_huge_pages", "1"),
        )
    ),
    *(
        (
            f"-o rdma_shm=/tmp/shm {other}",
            64,
            "rdma_shm=<file> needs TCP and RDMA: it goes with neither -s, whose socket serves for both, nor no_rdma\n",
        )
        for other in ("-s /tmp/socket", "-o no_rdma")
    ),
    ("-o hashpower", 1, "Missing numeric argument for hashpower\n"),
    ("-o hashpower=x", 1, "Initial hashtable multiplier of 0 is too low\n"),
    ("-o hashpower=11", 1, "Initial hashtable multiplier of 11 is too low\n"),
    (
        "-o hashpower=33",
        1,
        "Initial hashtable multiplier of 33 is too high\n"
        'Choose a value based on "STAT hash_power_level" from a running instance\n',
    ),
    (
        "-o hashpower=12",
        1,
        "Hash table power size (12) cannot be equal to or less than item lock table (12)\n"
        "Item lock table grows with `-t N` (worker threadcount)\nHash table grows with `-o hashpower=N` \n",
    ),
    (
        "-o hashpower=14 -t 20",
        1,
        "Hash table power size (14) cannot be equal to or less than item lock table (14)\n"
        "Item lock table grows with `-t N` (worker threadcount)\nHash table grows with `-o hashpower=N` \n",
    ),
    ("-o slab_automove=3", 1, "slab_automove must be between 0 and 2\n"),
    ("-o slab_automove=-1", 1, "slab_automove must be between 0 and 2\n"),
    ("-o slab_automove_ratio", 1, "Missing slab_automove_ratio argument\n"),
    ("-o slab_automove_ratio=0", 1, "slab_automove_ratio must be > 0 and < 1\n"),
    ("-o slab_automove_ratio=1.1", 1, "slab_automove_ratio must be > 0 and < 1\n"),
    ("-o slab_automove_ratio=x", 1, "slab_automove_ratio must be > 0 and < 1\n"),
    ("-o slab_automove_window", 1, "Missing slab_automove_window argument\n"),
    ("-o slab_automove_window=2", 1, "slab_automove_window must be > 2 and < 1800\n"),
    ("-o slab_automove_window=1801", 1, "slab_automove_window must be > 2 and < 1800\n"),
    ("-o tail_repair_time", 1, "Missing numeric argument for tail_repair_time\n"),
    ("-o tail_repair_time=9", 1, "Cannot set tail_repair_time to less than 10 seconds\n"),
    ("-o hash_algorithm", 1, "Missing hash_algorithm argument\n"),
    ("-o hash_algorithm=md5", 1, "Unknown hash_algorithm option (jenkins, murmur3, xxh3)\n"),
    ("-o lru_crawler_sleep", 1, "Missing lru_crawler_sleep value\n"),
    ("-o lru_crawler_sleep=-1", 1, "LRU crawler sleep must be between 0 and 1 second\n"),
    ("-o lru_crawler_sleep=1000001", 1, "LRU crawler sleep must be between 0 and 1 second\n"),
    ("-o lru_crawler_tocrawl", 1, "Missing lru_crawler_tocrawl value\n"),
    ("-o lru_crawler_tocrawl=x", 1, "lru_crawler_tocrawl takes a numeric 32bit value\n"),
    ("-o lru_algorithm", 1, "Missing lru_algorithm argument\n"),
    ("-o lru_algorithm=arc", 64, "lru_algorithm must be segmented or s3fifo, not arc\n"),
    ("-o hot_lru_pct", 1, "Missing hot_lru_pct argument\n"),
    ("-o hot_lru_pct=0", 1, "hot_lru_pct must be > 1 and < 80\n"),
    ("-o hot_lru_pct=80", 1, "hot_lru_pct must be > 1 and < 80\n"),
    ("-o warm_lru_pct=0", 1, "warm_lru_pct must be > 1 and < 80\n"),
    ("-o warm_lru_pct=80", 1, "warm_lru_pct must be > 1 and < 80\n"),
    ("-o warm_lru_pct", 1, "Missing warm_lru_pct argument\n"),
    ("-o hot_lru_pct=40,warm_lru_pct=41", 64, "hot_lru_pct + warm_lru_pct cannot be more than 80% combined\n"),
    ("-o hot_max_factor", 1, "Missing hot_max_factor argument\n"),
    ("-o hot_max_factor=0", 1, "hot_max_factor must be > 0\n"),
    ("-o warm_max_factor", 1, "Missing warm_max_factor argument\n"),
    ("-o warm_max_factor=-1", 1, "warm_max_factor must be > 0\n"),
    ("-o temporary_ttl", 1, "Missing temporary_ttl argument\n"),
    ("-o temporary_ttl=30,no_lru_maintainer", 64, "temporary_ttl requires lru_maintainer to be enabled\n"),
    ("-o idle_timeout", 1, "Missing numeric argument for idle_timeout\n"),
    ("-o watcher_logbuf_size", 1, "Missing watcher_logbuf_size argument\n"),
    ("-o watcher_logbuf_size=x", 1, "could not parse argument to watcher_logbuf_size\n"),
    ("-o worker_logbuf_size", 1, "Missing worker_logbuf_size argument\n"),
    ("-o worker_logbuf_size=x", 1, "could not parse argument to worker_logbuf_size\n"),
    ("-o slab_sizes=x", 64, "slab size 0 is out of valid range\n"),
    ("-o slab_sizes=100-50", 64, "slab size 50 cannot be lower than or equal to a previous class size\n"),
    ("-o slab_sizes=100-104", 64, "slab size 104 must be at least 8 bytes larger than previous class\n"),
    ("-o slab_sizes=100-100", 64, "slab size 100 cannot be lower than or equal to a previous class size\n"),
    ("-o slab_sizes=10", 64, "slab size 10 is out of valid range\n"),
    ("-o slab_sizes=99999999", 64, "slab size 99999999 is out of valid range\n"),
    ("-o slab_chunk_max", 1, "Missing slab_chunk_max argument\n"),
    ("-o slab_chunk_max=0", 1, "slab_chunk_max must be >= 0\n"),
    ("-o slab_chunk_max=-1", 1, "slab_chunk_max must be >= 0\n"),
    ("-o slab_chunk_max=512k", 1, "could not parse argument to slab_chunk_max\n"),
    ("-o slab_chunk_max=1.5", 1, "could not parse argument to slab_chunk_max\n"),
    ("-o slab_chunk_max=1025", 1, "slab_chunk_max must be specified in kilobytes.\n"),
    ("-o slab_chunk_max=2048", 1, "slab_chunk_max must be specified in kilobytes.\n"),
    (
        "-o slab_chunk_max=100",
        64,
        "-I (item_size_max: 1048576) must be evenly divisible by slab_chunk_max (bytes: 102400)\n",
    ),
    ("-o slab_chunk_max=16 -I 8k", 64, "slab_chunk_max (bytes: 16384) cannot be larger than -I (item_size_max 8192)\n"),
    ("-o read_buf_mem_limit", 1, "Missing read_buf_mem_limit argument\n"),
    ("-o read_buf_mem_limit=x", 1, "could not parse argument to read_buf_mem_limit\n"),
    ("-S -B auto", 64, "ERROR: You cannot allow the ASCII protocol while using SASL.\n"),
    ("-S -B ascii", 64, "ERROR: You cannot allow the ASCII protocol while using SASL.\n"),
    ("-S -U 11211", 64, "ERROR: Cannot enable UDP while using binary SASL authentication.\n"),
    ("-Z", 64, "-Z needs the server's certificate and key: -o ssl_chain_cert=<file>,ssl_key=<file>\n"),
]
# memcached 1.6.45 runs with these words.
ACCEPTED = (
    """
-m 2; -m 64m; -I 512k; -I 2m; -t 1; -R 1; -f 1.01; -f 100; -n 8; -n 100000; -b 0; -b 16; -B ascii; -B binary;
-B auto; -a 777; -D :; -D ::; -N 2; -P /tmp/x.pid; --threads=2; --memory-limit=8; --verbos=1;
-o hashpower=12 -t 3; -o hashpower=14 -t 10; -o modern; -o no_modern; -o maxconns_fast=1; -o slab_automove;
-o slab_automove=2; -o slab_automove_ratio=1; -o slab_automove_window=3; -o tail_repair_time=10;
-o hash_algorithm=jenkins; -o hash_algorithm=murmur3; -o hash_algorithm=xxh3; -o lru_crawler_sleep=1000000;
-o lru_crawler_tocrawl=5; -o hot_lru_pct=1; -o hot_lru_pct=40,warm_lru_pct=40; -o hot_max_factor=0.1;
-o temporary_ttl=30; -o idle_timeout=5; -o watcher_logbuf_size=128; -o worker_logbuf_size=32;
-o slab_sizes=100-200; -o slab_chunk_max=512; -o read_buf_mem_limit=1; -o read_buf_mem_limit=16;
-o resp_obj_mem_limit=1; -o track_sizes; -o inline_ascii_resp; -o no_chunked_items; -o no_hashexpand;
-o no_lru_crawler; -o no_slab_reassign; -o drop_privileges; -A -F -X -W -C -M -v
""".replace("\n", " ")
    .strip()
    .split("; ")
)
# memcached took these values for 0, cut them off, or ended by a signal; our daemon prints a line, and has a status.
STRICTER = {
    "-m x": "Invalid memory limit: x",
    "-m -1": "Invalid memory limit: -1",
    "-p x": "Invalid port number: x",
    "-U x": "Invalid UDP port number: x",
    "-U 65536": "ERROR: Invalid port number 65536.",
    "-b x": "Invalid backlog: x",
    "-a x": "Invalid access mask: x",
    "-I x": "Item max size is not a number: x",
    "-o idle_timeout=x": "idle_timeout is not a number of seconds",
    "-o worker_logbuf_size=4194304": "could not parse argument to worker_logbuf_size",
    "-o watcher_logbuf_size=4194304": "could not parse argument to watcher_logbuf_size",
    "-o sock_cookie_id": "Missing sock_cookie_id argument",
    "-o sock_cookie_id=x": "could not parse argument to sock_cookie_id",
    "-o slab_sizes": "slab_sizes names no size",
}


@pytest.mark.parametrize(("words", "status", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_refused(words: str, status: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    # With the first options a program serves nobody, even if the program accepts the words by mistake.
    assert main(["-U", "0", "-p", "-1", "-u", "no-such-user", *shlex.split(words)]) == status
    assert capsys.readouterr() == ("", message)


@pytest.mark.parametrize("words", ACCEPTED)
def test_accepted(words: str) -> None:
    _, action = parse(shlex.split(words))
    assert action.show is None


@pytest.mark.parametrize("words", STRICTER)
def test_stricter(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*shlex.split(words), "-u", "no-such-user"]) in (1, 64)
    assert capsys.readouterr() == ("", STRICTER[words] + "\n")
