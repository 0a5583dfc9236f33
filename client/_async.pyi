from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, TypeVar

from .meta import MetaItem, MetaNumber, MetaResult
from .sockets import Server

_Key = bytes | str
_K = TypeVar("_K", bytes, str)
_Self = TypeVar("_Self", bound="AsyncClient")

class AsyncClient:
    @property
    def server(self) -> Server: ...
    @property
    def transport(self) -> str: ...
    def __init__(self, *arguments: Any, **options: Any) -> None: ...
    async def __aenter__(self: _Self) -> _Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    async def close(self) -> None: ...
    async def get(self, key: _Key, default: Any = None) -> Any: ...
    async def gets(self, key: _Key, default: Any = None, cas_default: Any = None) -> tuple[Any, Any]: ...
    async def gat(self, key: _Key, expire: int = 0, default: Any = None) -> Any: ...
    async def gats(
        self, key: _Key, expire: int = 0, default: Any = None, cas_default: Any = None
    ) -> tuple[Any, Any]: ...
    async def get_many(self, keys: Iterable[_K]) -> dict[_K, Any]: ...
    async def get_multi(self, keys: Iterable[_K]) -> dict[_K, Any]: ...
    async def gets_many(self, keys: Iterable[_K]) -> dict[_K, tuple[Any, bytes]]: ...
    async def set(
        self, key: _Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool: ...
    async def add(
        self, key: _Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool: ...
    async def replace(
        self, key: _Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool: ...
    async def append(
        self, key: _Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool: ...
    async def prepend(
        self, key: _Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool: ...
    async def cas(
        self,
        key: _Key,
        value: Any,
        cas: int | str | bytes,
        expire: int = 0,
        noreply: bool = False,
        flags: int | None = None,
    ) -> bool | None: ...
    async def set_many(
        self, values: Mapping[_K, Any], expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> list[_K]: ...
    async def set_multi(
        self, values: Mapping[_K, Any], expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> list[_K]: ...
    async def delete(self, key: _Key, noreply: bool | None = None) -> bool: ...
    async def delete_many(self, keys: Iterable[_Key], noreply: bool | None = None) -> bool: ...
    async def delete_multi(self, keys: Iterable[_Key], noreply: bool | None = None) -> bool: ...
    async def incr(self, key: _Key, value: int, noreply: bool | None = False) -> int | None: ...
    async def decr(self, key: _Key, value: int, noreply: bool | None = False) -> int | None: ...
    async def touch(self, key: _Key, expire: int = 0, noreply: bool | None = None) -> bool: ...
    async def stats(self, *args: str | bytes) -> dict[bytes, Any]: ...
    async def version(self) -> bytes: ...
    async def flush_all(self, delay: int = 0, noreply: bool | None = None) -> bool: ...
    async def cache_memlimit(self, memlimit: int) -> bool: ...
    async def raw_command(self, command: str | bytes, end_tokens: str | bytes = "\r\n") -> bytes: ...
    async def meta_get(
        self,
        key: _Key,
        *,
        value: bool = True,
        flags: bool = False,
        cas: bool = False,
        ttl: bool = False,
        size: bool = False,
        hit_before: bool = False,
        last_access: bool = False,
        bump: bool = True,
        touch: int | None = None,
        vivify: int | None = None,
        recache: int | None = None,
        new_cas: int | str | bytes | None = None,
        opaque: str | bytes | None = None,
    ) -> MetaItem | None: ...
    async def meta_set(
        self,
        key: _Key,
        value: Any,
        *,
        expire: int = 0,
        flags: int | None = None,
        mode: Literal["set", "add", "replace", "append", "prepend"] = "set",
        cas: int | str | bytes | None = None,
        new_cas: int | str | bytes | None = None,
        invalidate: bool = False,
        vivify: int | None = None,
        return_cas: bool = False,
        return_size: bool = False,
        opaque: str | bytes | None = None,
    ) -> MetaResult: ...
    async def meta_delete(
        self,
        key: _Key,
        *,
        cas: int | str | bytes | None = None,
        new_cas: int | str | bytes | None = None,
        invalidate: bool = False,
        clear: bool = False,
        expire: int | None = None,
        opaque: str | bytes | None = None,
    ) -> MetaResult: ...
    async def meta_arithmetic(
        self,
        key: _Key,
        delta: int = 1,
        *,
        mode: Literal["incr", "decr"] = "incr",
        value: bool = True,
        initial: int | None = None,
        vivify: int | None = None,
        touch: int | None = None,
        cas: int | str | bytes | None = None,
        new_cas: int | str | bytes | None = None,
        return_cas: bool = False,
        ttl: bool = False,
        opaque: str | bytes | None = None,
    ) -> MetaNumber: ...
    async def meta_noop(self) -> bool: ...
    async def meta_debug(self, key: _Key) -> dict[str, Any] | None: ...
    async def exists(self, key: _Key) -> bool: ...
    async def ttl(self, key: _Key, default: Any = None) -> Any: ...
    async def last_access(self, key: _Key, default: Any = None) -> Any: ...
    async def invalidate(self, key: _Key, expire: int = 30) -> bool: ...
    async def gat_many(self, keys: Iterable[_K], expire: int = 0) -> dict[_K, Any]: ...
    async def get_or_set(
        self,
        key: _Key,
        compute: Callable[[], Any],
        expire: int = 0,
        *,
        lease: int = 30,
        wait: float | None = None,
        refresh: int | None = None,
        stale: bool = True,
    ) -> Any: ...
