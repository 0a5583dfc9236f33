"""Types of the compiled module."""

from types import TracebackType
from typing import Self

class VerbsError(OSError):
    status: int | None

class Base:
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
