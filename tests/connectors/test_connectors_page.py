"""docs/connectors.md: its daemon starts, and connectors with its settings find the daemon."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lmcache_adapter import Adapter, Arena
from servers import Server
from test_sglang import Config, Pool
from test_vllm import Engine, Model

PAGE = (Path(__file__).parents[2] / "docs" / "connectors.md").read_text()
BLOCKS = {
    title: json.loads(block)
    for title, block in re.findall(r"^## ([^\n]*)\n(?:(?!^## ).)*?```json\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
}


@pytest.fixture
def server(rmemcached_server: Callable[..., Server]) -> Server:
    """The daemon of the page, with less memory and a free port."""
    command = re.search(r"^    rmemcached (.*)$", PAGE, re.MULTILINE)
    assert command is not None
    options = shlex.split(command[1])
    for name in ("-p", "-l"):
        at = options.index(name)
        del options[at : at + 2]
    options[options.index("-m") + 1] = "256"
    return rmemcached_server(*options)


def made_of(entry: dict[str, Any], name: str) -> Any:
    return getattr(importlib.import_module(entry["module_path"]), entry[name])


def test_lmcache(server: Server) -> None:
    entry = BLOCKS["LMCache"]
    params = entry["adapter_params"]
    assert (params["host"], params["port"]) == (server.host, 11211) and entry["type"] == "native_plugin"
    connector = made_of(entry, "class_name")(**params | {"port": server.port})
    adapter, arena = Adapter(connector), Arena(8 << 20)
    block, target = arena.view(4 << 20, b"block"), arena.view(4 << 20)
    assert adapter.store(["key"], [block])[2] == [True]
    assert adapter.load(["key"], [target])[2] == [True] and target == block
    connector.close()


def test_vllm(server: Server) -> None:
    extra = BLOCKS["vLLM"]["kv_connector_extra_config"]
    assert extra["spec_name"] == "TieringOffloadingSpec"
    (entry,) = extra["secondary_tiers"]
    params = {name: value for name, value in entry.items() if name not in ("type", "module_path", "host", "port")}
    engine = Engine((entry["host"], server.port), 2, 4 << 20, Model(), **params)
    assert isinstance(engine.tier, made_of(entry, "type"))
    engine.memory[0] = 5
    assert engine.store([b"key" * 12], [0]).success and engine.load([b"key" * 12], [1]).success
    assert (engine.memory[1] == 5).all()
    engine.tier.shutdown()


def test_sglang(server: Server) -> None:
    entry = BLOCKS["SGLang"]
    storage = made_of(entry, "class_name")(Config(entry | {"port": server.port}), {})
    pool = Pool(2, 4 << 20)
    storage.register_mem_pool_host(pool)
    pool.memory[0] = 5
    assert storage.batch_set_v1(["page"], pool.tokens(0)) == [True]
    assert storage.batch_exists(["page"]) == 1 and storage.batch_get_v1(["page"], pool.tokens(1)) == [True]
    assert (pool.memory[1] == 5).all()
    storage.close()


def test_the_settings_are_those_of_all() -> None:
    """The settings of the page's table are exactly the settings of each connector."""
    rows = re.findall(r"^\| (`[^|]*) \|", PAGE[: PAGE.index("## LMCache")], re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    lmcache = importlib.import_module("rmemcached.connectors.lmcache").RMemcachedConnector
    vllm = importlib.import_module("rmemcached.connectors.vllm").RMemcachedTier
    sglang = importlib.import_module("rmemcached.connectors.sglang")
    assert names == set(lmcache.__init__.__kwdefaults__) | {"host", "port"}
    assert names == set(vllm.__init__.__kwdefaults__) - {"locality"}
    assert names == sglang.SETTINGS | {"workers"}
