from types import TracebackType
from typing import Any, Literal, TypeVar

_Key = bytes | str
_Self = TypeVar("_Self", bound="Pipeline")

class Pipeline:
    @property
    def results(self) -> list[Any]: ...
    def __init__(self, client: Any) -> None: ...
    def __len__(self) -> int: ...
    def __enter__(self: _Self) -> _Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def execute(self) -> list[Any]: ...
    def get(self, key: _Key, default: Any = None) -> None: ...
    def gets(self, key: _Key, default: Any = None, cas_default: Any = None) -> None: ...
    def gat(self, key: _Key, expire: int = 0, default: Any = None) -> None: ...
    def gats(self, key: _Key, expire: int = 0, default: Any = None, cas_default: Any = None) -> None: ...
    def set(self, key: _Key, value: Any, expire: int = 0, flags: int | None = None) -> None: ...
    def add(self, key: _Key, value: Any, expire: int = 0, flags: int | None = None) -> None: ...
    def replace(self, key: _Key, value: Any, expire: int = 0, flags: int | None = None) -> None: ...
    def append(self, key: _Key, value: Any, expire: int = 0, flags: int | None = None) -> None: ...
    def prepend(self, key: _Key, value: Any, expire: int = 0, flags: int | None = None) -> None: ...
    def cas(self, key: _Key, value: Any, cas: int | str | bytes, expire: int = 0, flags: int | None = None) -> None: ...
    def delete(self, key: _Key) -> None: ...
    def incr(self, key: _Key, value: int) -> None: ...
    def decr(self, key: _Key, value: int) -> None: ...
    def touch(self, key: _Key, expire: int = 0) -> None: ...
    def meta_get(
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
    ) -> None: ...
    def meta_set(
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
    ) -> None: ...
    def meta_delete(
        self,
        key: _Key,
        *,
        cas: int | str | bytes | None = None,
        new_cas: int | str | bytes | None = None,
        invalidate: bool = False,
        clear: bool = False,
        expire: int | None = None,
        opaque: str | bytes | None = None,
    ) -> None: ...
    def meta_arithmetic(
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
    ) -> None: ...
