"""The selection of the host's tests that also run over a device of libibverbs: a plugin of pytest for the guests.

The guests run the same test functions as the host. RMEMCACHED_TEST_TRANSPORT=verbs sets their transport,
RMEMCACHED_TEST_PACE the part of their repetitions. With RMEMCACHED_TEST_TRANSPORT=rdma_cm (guest_cm.py) the selection
has the tests for which the way of connecting matters.

There are two selections, because an emulated machine takes ten times as long:

* script/test runs tests/lab, tests/verbs, and from the rest the tests with the marker device, which names the device's
  part in the test. Of a test's cases two run, drawn at random, the same each time.
* script/lab (RMEMCACHED_TEST_LAB=all) runs all tests over the transport, but for the omissions in the tables below. The
  head of the report lists them. The handling of a message's bytes by daemon and client is the same over each transport.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from zlib import crc32

import pytest

TRANSPORT = os.environ.get("RMEMCACHED_TEST_TRANSPORT", "verbs")
ALL = os.environ.get("RMEMCACHED_TEST_LAB") == "all"
CASES = 2  # of a test, unless ALL
FABRICS = "about the software fabrics"
STREAM = "about iWARP's stream"
KERNEL = "the kernel answers READs for a process that does nothing"
SILENT = "nothing but the lifeline tells of a queue pair's end"
NO_LIFELINE = "has no lifeline"
INHERITED = "-c counts inherited descriptors, which are fewer in the guest"
OVER_TCP = "over TCP"
PARSED = "messages are read alike over each transport"
COMMANDS = "what commands do is the same over each transport"
MOVED = "values move as over verbs"

# The files of tests/system that run: {file: {test left out: the reason}}.
LEFT_OUT: dict[str, dict[str, str]] = {
    "test_completions": {},
    "test_death": {
        "test_killed_with_a_read_in_flight": KERNEL,
        "test_killed_with_a_write_in_flight": KERNEL,
        "test_memory_taken_back_under_a_read": KERNEL,
        "test_the_queue_pair_goes_with_its_lifeline": SILENT,
        "test_the_lifeline_goes_with_its_queue_pair": SILENT,
        "test_unfinished_sets_over_tcp": OVER_TCP,
    },
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
        "test_a_queue_pair_waits_for_its_stream": STREAM,
        "test_a_lifeline_breaks_while_its_stream_has_input": STREAM,
    },
    "test_hostile_peer": {
        "test_send_without_a_credit": KERNEL,
        "test_message_too_short": PARSED,
        "test_unknown_type": PARSED,
        "test_first_message_is_not_ready": PARSED,
        "test_malformed_source": PARSED,
        "test_malformed_sink": PARSED,
    },
    "test_interop": {
        "test_item_size_limit_is_memcached_s": "no client of ours",
        "test_every_size_to_4096_by_tcp": OVER_TCP,
        "test_flags_both_ways": COMMANDS,
        "test_cas_both_ways": COMMANDS,
        "test_expiry_both_ways": COMMANDS,
    },
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

# Files of tests/system mostly about other things: only these tests run.
CHOSEN = {
    "test_daemon": "test_stop_with_clients_and_transfers[SIGTERM]",
    "test_pressure": "test_greedy_rdma_client test_lane_that_waits_for_a_read_stops_its_client test_long_multigets"
    " test_byte_by_byte test_idle_queue_pairs",
    "test_stats": "test_counters_by_rdma_are_those_by_tcp test_statistics_over_rdma test_flush_all",
}

# Files of tests/client that do not run: their tests use no transport, choose the transport themselves, or are about
# the handling of bytes.
OF_NO_TRANSPORT = (
    *("test_async_direct_reads", "test_async_tls", "test_broken_servers", "test_client_authentication"),
    *("test_client_classic", "test_client_dumps", "test_client_objects", "test_client_oracle", "test_client_sockets"),
    *("test_cluster", "test_cluster_discovery", "test_direct_reads", "test_guide", "test_libmemcached"),
    *("test_observed", "test_remote_reads", "test_serde_failures", "test_silent_servers", "test_types", "test_urls"),
    *("test_view_limits", "test_views", "test_wrong_answers"),
)

# Files of which only these tests run: tests about moving values, waiting, and shared queue pairs and memory.
CHOSEN_OF_CLIENT = {
    "test_async_client": "test_many_tasks test_ten_thousand_gets_half_of_them_cancelled test_a_timeout_of_asyncio"
    " test_a_silent_server test_without_waiting_for_answers test_the_server_is_killed_and_started_again"
    " test_a_loop_that_was_busy_for_longer_than_the_timeout test_clients_on_one_loop"
    " test_close_while_calls_are_under_way test_values_in_memory_have_a_limit test_a_child_makes_its_own_connection"
    " test_other_tasks_run_while_answers_come test_into_the_callers_memory",
    "test_client_errors": "test_they_name_server_command_and_cause test_a_time_out_names_server_and_command"
    " test_a_dead_server test_sets_without_an_answer_to_a_dead_server_fail_from_the_second_on"
    " test_a_server_that_is_full",
    "test_client_meta": "test_values test_set test_one_caller_computes test_one_task_computes",
    "test_client_pipeline": "test_many_commands test_behind_commands_without_an_answer",
    "test_client_threads": "test_one_client_in_many_threads test_close_while_a_call_is_under_way"
    " test_a_call_during_another_ones_wait_has_a_connection_of_its_own test_after_a_fork_parent_and_child_go_on"
    " test_connections_of_threads_that_have_ended_are_used_again test_a_fork_while_another_thread_is_in_a_call",
    "test_deadlines": "test_a_call_with_a_buffer test_others_on_the_queue_pair_go_on test_a_cluster"
    " test_large_values_leave_other_tasks_their_turn test_calls_that_are_given_up",
    "test_foreign_sockets": "test_sock test_a_time_out_of_sock_does_not_disturb test_sock_in_a_forked_child"
    " test_sock_is_made_once_and_closed_with_the_connection",
    "test_large_values": "test_several_values_of_any_size test_values_that_change_come_whole"
    " test_threads_get_several_values test_memory_is_the_callers_behind_a_timeout"
    " test_the_server_writes_several_values_to_memory test_a_value_comes_to_its_place_only",
    "test_making_connections": "test_a_handler_that_raises",
    "test_serde": "test_objects_with_arrays test_arrays_outlive_everything test_gathered test_too_large_for_the_server",
}

# The loops of asyncio and of uvloop wait for a device in the same way, by a descriptor: only this test runs on both.
BOTH_LOOPS = "test_many_tasks"

# Files whose tests with an RDMA transport run over rdma_cm, but for the named tests, each with its reason.
OVER_CM: dict[str, dict[str, str]] = {
    "tests/client/test_client_values.py": dict.fromkeys(
        (
            *("test_sizes_in_random_order", "test_returned_bytes_are_ordinary", "test_bytes_like_values"),
            *("test_values_stay_when_the_next_one_arrives", "test_mutable_value_is_released_after_set"),
            *("test_large_value_with_expiry_in_the_past", "test_flags_of_large_values", "test_many_small_values"),
            *("test_errors_in_a_batch_leave_the_connection_in_step",),
            *("test_error_lines_of_commands_without_reply_are_not_taken_for_answers",),
            *("test_too_large_for_the_server_leaves_the_connection_usable",),
        ),
        MOVED,
    ),
    "tests/system/test_death.py": {
        "test_killed_with_a_read_in_flight": KERNEL,
        "test_killed_with_a_write_in_flight": KERNEL,
        "test_memory_taken_back_under_a_read": KERNEL,
        "test_the_queue_pair_goes_with_its_lifeline": NO_LIFELINE,
        "test_the_lifeline_goes_with_its_queue_pair": NO_LIFELINE,
        "test_unfinished_sets_over_tcp": OVER_TCP,
    },
    "tests/system/test_lane_messages.py": {
        "test_breach": NO_LIFELINE,
        "test_the_end_of_the_lifeline_ends_all_lanes": NO_LIFELINE,
        "test_the_end_of_the_lifeline_within_a_value": NO_LIFELINE,
        "test_lanebytes_are_demanded": NO_LIFELINE,
        "test_beyond_the_limit_of_connections": INHERITED,
        "test_a_value_of_which_a_part_has_been_written": KERNEL,
        "test_a_small_reply_overtakes_a_large_value": KERNEL,
        "test_a_client_without_credits_takes_no_receives_of_others": FABRICS,
        "test_memory_of_queue_pairs": FABRICS,
        "test_queue_pairs_beyond_those_that_share_receives": FABRICS,
        "test_lanes_of_a_queue_pair_have_a_limit_of_their_own": FABRICS,
        "test_memory_of_idle_lanes": MOVED,
        "test_refusals_that_cannot_leave": MOVED,
        "test_large_values_in_messages": MOVED,
        "test_many_lanes_fetch_at_once": MOVED,
        "test_room_comes_back_without_replies": MOVED,
    },
    "tests/client/test_shared_queue_pairs.py": {
        "test_queue_pairs_are_given_to_all_workers": NO_LIFELINE,
        "test_threads_do_not_mix": MOVED,
        "test_requests_without_replies": MOVED,
        "test_sleepers_are_woken": MOVED,
        "test_more_than_a_lane_keeps_both_ways": MOVED,
        "test_owners_sleep_until_they_can_go_on": MOVED,
        "test_a_value_that_comes_too_late": KERNEL,
        "test_signal_handlers_run": MOVED,
    },
}

# The tests of tests/perftest that run, in their cases without options. Each case starts two processes.
PERFTEST = "test_latency test_bandwidth"

# A test's parameter for the transport may have these other values.
OTHERS = {"tcp", "unix", "soft_iw", "soft_shm"}

REPORT = pytest.StashKey[list[str]]()


def transports(item: pytest.Item) -> set[str]:
    """The transports named by the item's parameters."""
    named: set[str] = set()
    for value in getattr(getattr(item, "callspec", None), "params", {}).values():
        named.update(word for word in (value if isinstance(value, tuple) else (value,)) if isinstance(word, str))
    return named


def options(item: pytest.Item) -> tuple[str, ...]:
    """The parameter `options` of the item's case, or none."""
    return getattr(getattr(item, "callspec", None), "params", {}).get("options", ())


def has_selected(path: Path) -> bool:
    """Whether a file of the host's tests may have a selected test."""
    text = path.read_text()
    if path.parent.name == "verbs":
        return re.search(r"^pytestmark = .*mark\.(once|soft)\b", text, re.MULTILINE) is None
    return path.stem not in OF_NO_TRANSPORT and (ALL or "mark.device(" in text)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Files without a selected test need not be read."""
    of_host = collection_path.parent.name in ("client", "verbs") and collection_path.name.startswith("test_")
    return True if of_host and not has_selected(collection_path) else None


def pytest_pycollect_makeitem(collector: pytest.Module, name: str, obj: object) -> list[pytest.Item] | None:
    """Leaves out what script/test does not run in guests. Then pytest makes no items for the test's parameters."""
    if ALL or not name.startswith("test_"):
        return None
    marks = {mark.name for mark in (*collector.iter_markers(), *getattr(obj, "pytestmark", ()))}
    return None if "device" in marks or collector.path.parent.name in ("lab", "verbs") else []


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
            # A test runs once over the transport: its case with uvloop would be a second run.
            chosen = name in CHOSEN_OF_CLIENT.get(file, name).split()
            twice = "uvloop" in transports(item) and name != BOTH_LOOPS
            kept += [item] * (chosen and "verbs" in transports(item) and not twice)
        elif item.path.parent.name == "perftest":
            kept += [item] * (name in PERFTEST.split() and not options(item))
        elif item.path.parent.name in ("verbs", "lab") or (
            (file in LEFT_OUT or {name, item.name} & {*CHOSEN[file].split()}) and not transports(item) & OTHERS
        ):
            kept.append(item)
    config.stash[REPORT] = [f"not over {TRANSPORT}: {name}: {why}" for name, why in reasons.items()]
    items[:] = kept if ALL else some_cases(kept)


def some_cases(items: list[pytest.Item]) -> list[pytest.Item]:
    """Of each test so many cases, in the order of the items."""
    taken: Counter[str] = Counter()
    chosen = set()
    for item in sorted(items, key=lambda item: crc32(item.nodeid.encode())):
        test = item.nodeid.partition("[")[0]
        taken[test] += 1
        if taken[test] <= CASES:
            chosen.add(item)
    return [item for item in items if item in chosen]


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    return config.stash.get(REPORT, [])
