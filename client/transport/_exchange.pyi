SOFT_IW: str
SOFT_SHM: str
VERBS: str
LINE_MAX: int
SHM_REPLY: bytes
SHM_MEMORY_PARTS: int

class Offer:
    def __init__(self, line: bytes, transport: str) -> None: ...
    @property
    def path(self) -> str | None: ...

def shm_request(offer: Offer) -> bytes: ...
