from typing import Any

class SocketStream:
    classic: bool
    unmarked: bool
    @property
    def sock(self) -> Any: ...
    def __init__(self, sock: Any, timeout: float | None) -> None: ...
