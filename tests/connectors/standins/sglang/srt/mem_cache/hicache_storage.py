"""In place of SGLang 0.5.23's sglang/srt/mem_cache/hicache_storage.py, where SGLang is not installed."""

from abc import ABC, abstractmethod
from typing import Any


class HiCacheStorage(ABC):
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host

    @abstractmethod
    def get(self, key: Any, target_location: Any = None, target_sizes: Any = None) -> Any: ...

    @abstractmethod
    def batch_get(self, keys: Any, target_locations: Any = None, target_sizes: Any = None) -> Any: ...

    @abstractmethod
    def set(self, key: Any, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> Any: ...

    @abstractmethod
    def batch_set(
        self, keys: Any, values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> Any: ...

    @abstractmethod
    def exists(self, key: Any) -> Any: ...
