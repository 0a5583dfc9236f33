"""For PyTorch: a Dataset with samples in rmemcached, a serde for tensors, and torch.compile's remote cache.

Needs torch (``pip install 'rmemcached[torch]'``). A server that is down costs time, and never a training run: the
process computes missing samples, and asks a failed server again after 10 seconds.
"""

from __future__ import annotations

import contextlib
import io
import operator
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
from torch._inductor.remote_cache import RedisRemoteCache, RemoteCacheBackend
from torch.utils.data import Dataset, IterableDataset

from rmemcached.client.serde import Pickle5Serde

from ._clients import expiry, fitting_key, key_room, make_cluster

DEFAULTS = {
    **{"allow_unicode_keys": True, "default_noreply": False, "ignore_exc": True},
    **{"connect_timeout": 1.0, "timeout": 10.0, "retry_attempts": 0, "dead_timeout": 10.0},
}


def rebuilt(data: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns a tensor on writable memory."""
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


class TensorPickler(pickle.Pickler):
    """Pickles plain tensors of the CPU as buffers beside the pickle, and any other object as pickle does."""

    def reducer_override(self, value: Any) -> Any:
        """See pickle.Pickler."""
        if (
            type(value) is not torch.Tensor
            or value.device.type != "cpu"
            or value.layout is not torch.strided
            or value.requires_grad
            or value.is_quantized
            or value.is_conj()
            or value.is_neg()
            or not value.numel()
        ):
            return NotImplemented
        # NumPy lacks some of torch's types, so the buffer is made of bytes.
        data = value.contiguous().reshape(-1).view(torch.uint8).numpy()
        return rebuilt, (pickle.PickleBuffer(data), value.dtype, tuple(value.shape))


class TensorSerde(Pickle5Serde):
    """A Pickle5Serde for tensors: no copy of CPU tensors in a store, and one copy in a fetch.

    Fetched tensors are writable. Unpickling runs code: only for servers to which nobody else can write.
    """

    def __init__(self, min_buffer: int = 1024) -> None:
        super().__init__(writable=True, min_buffer=min_buffer)

    def _dumps(self, value: Any, keep: Callable[[Any], bool]) -> bytes:
        """Returns the pickle for Pickle5Serde.serialize, without the buffers for which `keep` returns false."""
        text = io.BytesIO()
        TensorPickler(text, 5, buffer_callback=keep).dump(value)
        return text.getvalue()


class CachedDataset(Dataset[Any]):
    """A Dataset with its samples in rmemcached: the first process to miss a sample computes and stores it.

    dataset: a map-style Dataset. servers: "host:port", a URL, or several. name: of these samples among all samples
    in the same servers: data, preprocessing, version. expire: seconds, None: for ever. options: the arguments of
    rmemcached.client.ClusterClient; by default serde is a TensorSerde. Raises ValueError, and TypeError for an
    IterableDataset.

    A DataLoader's worker has connections of its own, forked or spawned, and asks for a whole batch at once. A sample
    too large for the server (its option -I) is computed each time. Apply random transformations outside: a stored
    sample is the same in every epoch.
    """

    def __init__(self, dataset: Any, servers: Any, name: str, expire: float | None = None, **options: Any) -> None:
        if isinstance(dataset, IterableDataset):
            raise TypeError("CachedDataset: an IterableDataset has no samples by index")
        if not name:
            raise ValueError("CachedDataset: name must tell these samples from others: 'imagenet-train-v1'")
        self.dataset = dataset
        self.name = name
        self.expire = expire
        self.client = make_cluster(servers, options, {**DEFAULTS, "serde": TensorSerde()})
        self._room = key_room(self.client)

    def _key(self, index: Any) -> str:
        # NumPy's and torch's integers name the same sample as Python's.
        with contextlib.suppress(TypeError):
            index = operator.index(index)
        return fitting_key(f"{self.name}:{index!r}", self._room)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Returns the samples of a batch, and computes and stores the missing samples."""
        keys = [self._key(index) for index in indices]
        found = self.client.get_many(list(dict.fromkeys(keys)))
        new: dict[str, Any] = {}
        samples = []
        for index, key in zip(indices, keys, strict=True):
            if key not in found:
                found[key] = new[key] = self.dataset[index]
            samples.append(found[key])
        if new:
            self.client.set_many(new, expiry(self.expire))
        return samples


class CompileCacheBackend(RemoteCacheBackend[bytes]):
    """torch.compile's remote cache on rmemcached, in the place of its Redis.

    servers, options: as for CachedDataset. Failures are misses. `use_for_compile` installs the back end.
    """

    def __init__(self, servers: Any = "127.0.0.1:11211", **options: Any) -> None:
        super().__init__()
        self.client = make_cluster(servers, options, DEFAULTS)
        self._room = key_room(self.client)

    def _get(self, key: str) -> bytes | None:
        value: bytes | None = self.client.get(fitting_key(key, self._room))
        return value

    def _put(self, key: str, data: bytes) -> None:
        self.client.set(fitting_key(key, self._room), data)


def use_for_compile(servers: Any = "127.0.0.1:11211", **options: Any) -> CompileCacheBackend:
    """Makes torch.compile of this process take compiled graphs from these servers, and store them there.

    The caches hold the graphs of FX and of AOTAutograd, and the choices of autotuning. Graphs run as code: only for
    servers to which nobody else can write. Large graphs need -I 64m or so. Returns the back end. Raises ValueError.
    """
    backend = CompileCacheBackend(servers, **options)
    RedisRemoteCache.backend_override_cls = lambda: backend
    torch._inductor.config.fx_graph_remote_cache = True
    torch._inductor.config.autotune_remote_cache = True
    torch._functorch.config.enable_remote_autograd_cache = True
    return backend
