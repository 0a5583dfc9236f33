from typing import Any

class CmRoute:
    def __init__(self, family: int, address: tuple[Any, ...], timeout: float | None) -> None: ...
