"""PyTorch's DataLoader and torch.compile with rmemcached. script/torch-suite runs these tests where torch is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from frameworks import in_threads
from servers import Server, free_port
from torch.utils.data import DataLoader, Dataset, IterableDataset

from rmemcached.client import Client
from rmemcached.client.serde import FLAG_BUFFERS, FLAG_PICKLE
from rmemcached.connectors.torch import CachedDataset, TensorSerde

ServerFactory = Callable[..., Server]
PAGE = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()


class Samples(Dataset[Any]):
    """A data set that writes a line to a file for each computed sample."""

    def __init__(self, log: Path, size: int = 1000, count: int = 12) -> None:
        self.log = log
        self.size = size
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        with self.log.open("a") as log:
            log.write(f"{index}\n")
        return torch.full((self.size,), float(index)), index

    def computed(self) -> list[int]:
        lines = self.log.read_text().split() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return sorted(map(int, lines))


def epoch(dataset: Any, **options: Any) -> list[int]:
    found = []
    for values, indices in DataLoader(dataset, batch_size=4, **options):
        assert (values == indices[:, None]).all()
        found += indices.tolist()
    return sorted(found)


@pytest.mark.parametrize("how", ["fork", "spawn"])
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_workers(module_rmemcached: Server, tmp_path: Path, transport: str, how: str) -> None:
    samples = Samples(tmp_path / "log", size=200_000)
    url = f"{transport}://127.0.0.1:{module_rmemcached.port}"
    dataset = CachedDataset(samples, url, name=f"workers-{transport}-{how}")
    # This process has connections before the forks.
    assert dataset[0][1] == 0 and samples.computed() == [0]
    for computed in (list(range(1, 12)), []):
        assert epoch(dataset, num_workers=2, multiprocessing_context=how) == list(range(12))
        assert samples.computed() == computed
    assert epoch(dataset) == list(range(12)) and samples.computed() == []
    dataset.client.close()


def test_names_indices_and_times(module_rmemcached: Server, tmp_path: Path) -> None:
    samples = Samples(tmp_path / "log")
    server = module_rmemcached.address
    one = CachedDataset(samples, server, name="one", expire=365 * 24 * 3600, key_prefix="torch:")
    assert len(one) == 12 and one[3][1] == 3 and one[3][1] == 3 and samples.computed() == [3]
    assert CachedDataset(samples, server, name="other" * 100)[3][1] == 3 and samples.computed() == [3]
    assert [index for _, index in one.__getitems__([5, 5, 3])] == [5, 5, 3] and samples.computed() == [5]
    assert 364 * 24 * 3600 < one.client.ttl("one:3") <= 365 * 24 * 3600 + 1
    for index in (torch.tensor(7), numpy.int64(7), 7):
        assert CachedDataset(samples, server, name="kinds")[index][1] == 7
    assert samples.computed() == [7]
    nothing = CachedDataset([None], server, name="none")
    assert nothing[0] is None and nothing[0] is None
    assert in_threads(lambda number: one[number % 12][1]) == [number % 12 for number in range(200)]
    with pytest.raises(ValueError, match="name"):
        CachedDataset(samples, server, name="")
    with pytest.raises(TypeError, match="IterableDataset"):
        CachedDataset(IterableDataset(), server, name="iterable")


def test_servers_that_are_down_or_refuse(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    samples = Samples(tmp_path / "log", size=500_000)
    down = CachedDataset(samples, f"127.0.0.1:{free_port()}", name="down")
    assert epoch(down, num_workers=2) == list(range(12)) and samples.computed() == list(range(12))
    small = CachedDataset(samples, f"127.0.0.1:{rmemcached_server('-t', '1').port}", name="small")
    for _ in range(2):
        assert epoch(small) == list(range(12)) and samples.computed() == list(range(12))
    small.client.close()


def test_tensors(module_rmemcached: Server) -> None:
    serde = TensorSerde()
    with Client(module_rmemcached.address, serde=serde, default_noreply=False) as client:
        whole = torch.arange(20_000.0)
        values = [whole, whole.to(torch.bfloat16), whole > 5, whole.reshape(100, 200).T, whole[::3], whole[:1]]
        values += [
            torch.tensor(1.5),
            torch.empty(0, 3),
            torch.complex(whole, whole),
            torch.complex(whole, whole).conj(),
        ]
        values += [torch.randint(0, 9, (3, 4), dtype=torch.int8), whole.to_sparse()]
        for value in values:
            client.set("tensor", value)
            found = client.get("tensor")
            assert found.dtype == value.dtype and found.shape == value.shape
            assert torch.equal(found.to_dense(), value.to_dense())
        client.set("parameter", torch.nn.Parameter(whole))
        assert client.get("parameter").requires_grad
        client.set("batch", {"x": whole, "y": [whole, 5]})
        batch = client.get("batch")
        batch["x"][0] = 7.0
        assert batch["x"][0] == 7.0 and batch["y"][0] is batch["x"] and torch.equal(batch["x"][1:], whole[1:])
    assert serde.serialize("key", whole)[1] == FLAG_BUFFERS and serde.serialize("key", whole[:2])[1] == FLAG_PICKLE


COMPILE = """
import sys, torch
from torch._dynamo.utils import counters
from rmemcached.connectors.torch import use_for_compile
backend = use_for_compile(sys.argv[1])

@torch.compile
def function(x):
    return (x.sin() * 2 + x.cos()).sum()

value = torch.ones(100)
assert torch.allclose(function(value), (value.sin() * 2 + value.cos()).sum())
print({name: counters["aot_autograd"][name] for name in ("autograd_cache_hit", "autograd_cache_miss")})
"""


def compiled(address: str, folder: Path) -> str:
    """The counts of a process that compiles with an empty local cache."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, address],
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_compiled_graphs_come_from_the_server(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    server = rmemcached_server("-I", "64m", "-m", "256")
    address = f"tcp://127.0.0.1:{server.port}"
    miss = "{'autograd_cache_hit': 0, 'autograd_cache_miss': 1}"
    assert compiled(address, tmp_path / "one") == miss
    assert int(server.stats()["curr_items"]) > 0
    assert compiled(address, tmp_path / "two") == "{'autograd_cache_hit': 1, 'autograd_cache_miss': 0}"
    assert compiled(f"127.0.0.1:{free_port()}", tmp_path / "three") == miss


def test_the_code_of_the_page(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    server = rmemcached_server("-I", "64m", "-m", "256")
    found = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "import torch" in code]
    assert found
    for code in found:
        script = tmp_path / "example.py"
        script.write_text(code.replace("11211", str(server.port)))
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0, done.stderr
