from typing import TypedDict

class Choice(TypedDict):
    device: str
    port: int
    gid_index: int
    gid: bytes
    mtu: int
    reads: tuple[int, int]

def choose(provider: str, device: str | None = None, port: int = 0, gid_index: int = -1) -> Choice: ...
