from collections.abc import Sequence
from typing import Any

from ._client import Client

def run(
    descriptors: Sequence[int],
    seconds: float,
    keys: int = 10000,
    key_size: int = 32,
    value_size: int = 100,
    depth: int = 1,
    set_every: int = 10,
    seed: int = 1,
    multiget: int = 1,
    ask: str = "",
    rate: float = 0,
) -> dict[str, Any]: ...
def run_client(
    session: Client,
    seconds: float,
    keys: int = 10000,
    key_size: int = 32,
    value_size: int = 100,
    depth: int = 32,
    set_every: int = 0,
    seed: int = 1,
) -> dict[str, Any]: ...
def read_direct(session: Client, key: bytes, seconds: float, pause: float = 0.0, most: int = 1000000) -> list[int]: ...
def read_remote(session: Client, key: bytes, seconds: float, anew: bool = False, most: int = 1000000) -> list[int]: ...
def count_direct(session: Client, keys: Sequence[bytes], seconds: float) -> tuple[int, int]: ...
def store_commands(first: int, count: int, key_size: int = 32, value_size: int = 100) -> bytes: ...
def count_commands(first: int, count: int, key_size: int = 32) -> bytes: ...
