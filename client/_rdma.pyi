from ._queue_pair import QueuePair

class RdmaStream:
    def __init__(self, queue: QueuePair, timeout: float | None, spin: int) -> None: ...
