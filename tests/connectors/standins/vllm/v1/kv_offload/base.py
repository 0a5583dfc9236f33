"""The names of vllm/v1/kv_offload/base.py of vLLM 0.33.0 that a tier uses, for tests without vLLM."""

from dataclasses import dataclass
from enum import Enum, auto


class Medium(Enum):
    CPU = "CPU"
    STORAGE = "STORAGE"


class Locality(Enum):
    LOCAL = "LOCAL"
    REMOTE = "REMOTE"


class LookupResult(Enum):
    MISS = auto()
    HIT = auto()
    HIT_PENDING = auto()
    RETRY = auto()


@dataclass
class RequestOffloadingContext:
    policy: str = "chunk_level"
