"""Which of the host's tests run over a device of libibverbs, too: a plugin of pytest, for test_lab.py.

The bodies are the same: RMEMCACHED_TEST_TRANSPORT=verbs says what to run them over, RMEMCACHED_TEST_PACE how much of
what they repeat; with RMEMCACHED_TEST_TRANSPORT=rdma_cm (guest_cm.py) those for which it matters how the connection was
made. All of tests/verbs is run (its conftest.py says what of it is about the software fabrics); of the files of other
folders those that are named here. The head of the report says what was left out.
"""

from __future__ import annotations

import os

import pytest

TRANSPORT = os.environ.get("RMEMCACHED_TEST_TRANSPORT", "verbs")
FABRICS = "about the software fabrics"
STREAM = "about iWARP's stream"
KERNEL = "the kernel answers READs for a process that does nothing"
SILENT = "nothing but the lifeline tells of a queue pair's end"
NO_LIFELINE = "has no lifeline"
OVER_TCP = "over TCP"

# Files of tests/system of which everything runs but these.
LEFT_OUT: dict[str, dict[str, str]] = {
    "test_completions": {},
    "test_death": {
        "test_killed_with_a_read_in_flight": KERNEL,
        "test_killed_with_a_write_in_flight": KERNEL,
        "test_memory_taken_back_under_a_read": KERNEL,
        "test_the_queue_pair_goes_with_its_lifeline": SILENT,
        "test_the_lifeline_goes_with_its_queue_pair": SILENT,
    },
    "test_features": {},
    "test_hostile_exchange": {
        "test_unknown_transport": "verbs is a transport here",
        "test_no_rdma": "has no RDMA",
        "test_wrong_token_or_number": STREAM,
        "test_rejection_is_told": STREAM,
        "test_stream_attached_twice": STREAM,
        "test_token_of_a_dead_queue_pair": STREAM,
        "test_markers_and_other_revisions": STREAM,
        "test_garbage_behind_m": STREAM,
        "test_request_in_pieces": STREAM,
        "test_garbage_behind_the_start": STREAM,
        "test_request_never_completed": STREAM,
        "test_a_queue_pair_without_a_stream_stays": STREAM,
    },
    "test_hostile_peer": {"test_send_without_a_credit": KERNEL},
    "test_interop": {"test_item_size_limit_is_memcached_s": "no client of ours"},
    "test_leaks": {},
    "test_limits": {
        "test_out_of_memory": FABRICS,
        "test_out_of_memory_while_the_payload_is_awaited": KERNEL,
    },
    "test_load": {},
    "test_moving": {},
    "test_remote_items": {"test_only_who_may_read_has_reads_in_flight": STREAM},
    "test_payload_path": {"test_frames_carry_the_payload_once": STREAM},
}

# Files that are about something else mostly, and what runs of them.
CHOSEN = {
    "test_daemon": "test_stop_with_clients_and_transfers[SIGTERM]",
    "test_pressure": "test_greedy_rdma_client test_lane_that_waits_for_a_read_stops_its_client test_long_multigets"
    " test_byte_by_byte test_idle_queue_pairs",
    "test_stats": "test_counters_by_rdma_are_those_by_tcp test_statistics_over_rdma test_flush_all",
}

# Files of tests/client that are about no transport; they run over each of the others.
OF_NO_TRANSPORT = (
    *("test_client_authentication", "test_client_dumps", "test_client_objects", "test_client_sockets"),
    *("test_cluster", "test_observed", "test_urls"),
)

# Of these only what moves values in other ways.
CHOSEN_OF_CLIENT = {
    "test_client_meta": "test_values test_set test_one_caller_computes test_one_task_computes",
    "test_serde": "test_objects_with_arrays test_arrays_outlive_everything test_gathered test_too_large_for_the_server",
}

# Over rdma_cm all that uses an RDMA transport in these, but what is left out.
OVER_CM: dict[str, dict[str, str]] = {
    "tests/client/test_client_values.py": {},
    "tests/system/test_death.py": {
        "test_killed_with_a_read_in_flight": KERNEL,
        "test_killed_with_a_write_in_flight": KERNEL,
        "test_memory_taken_back_under_a_read": KERNEL,
        "test_the_queue_pair_goes_with_its_lifeline": NO_LIFELINE,
        "test_the_lifeline_goes_with_its_queue_pair": NO_LIFELINE,
        "test_unfinished_sets_over_tcp": OVER_TCP,
    },
}

# Of tests/perftest, without options. Each starts two processes.
PERFTEST = "test_latency test_bandwidth"

# The other values of parameters that stand for a transport.
OTHERS = {"tcp", "unix", "soft_iw", "soft_shm"}

REPORT = pytest.StashKey[list[str]]()


def transports(item: pytest.Item) -> set[str]:
    """What the item's parameters name."""
    named: set[str] = set()
    for value in getattr(getattr(item, "callspec", None), "params", {}).values():
        named.update(word for word in (value if isinstance(value, tuple) else (value,)) if isinstance(word, str))
    return named


def options(item: pytest.Item) -> tuple[str, ...]:
    return getattr(getattr(item, "callspec", None), "params", {}).get("options", ())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, reasons = [], {}
    for item in items:
        file, name = item.path.stem, getattr(item, "originalname", item.name)
        if TRANSPORT == "rdma_cm":
            left_out = OVER_CM[str(item.path.relative_to(config.rootpath))]
            if name in left_out:
                reasons[name] = left_out[name]
            elif "rdma_cm" in transports(item):
                kept.append(item)
        elif file in LEFT_OUT and name in LEFT_OUT[file]:
            reasons[name] = LEFT_OUT[file][name]
        elif item.path.parent.name == "client":
            # Most of it once for each transport.
            chosen = CHOSEN_OF_CLIENT.get(file, name).split()
            kept += [item] * ("verbs" in transports(item) and file not in OF_NO_TRANSPORT and name in chosen)
        elif item.path.parent.name == "perftest":
            kept += [item] * (name in PERFTEST.split() and not options(item))
        elif item.path.parent.name in ("verbs", "lab") or (
            (file in LEFT_OUT or {name, item.name} & {*CHOSEN[file].split()}) and not transports(item) & OTHERS
        ):
            kept.append(item)
    config.stash[REPORT] = [f"not over {TRANSPORT}: {name}: {why}" for name, why in reasons.items()]
    items[:] = kept


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    return config.stash.get(REPORT, [])
