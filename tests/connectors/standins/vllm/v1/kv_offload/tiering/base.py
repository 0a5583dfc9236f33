"""In place of vllm/v1/kv_offload/tiering/base.py of vLLM 0.33.0, where vLLM is not installed: a tier's methods."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any


@dataclass
class TransferJob:
    job_id: int
    keys: Any
    chunk_ids: Any
    is_promotion: bool
    req_context: Any


@dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: Any = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


class SecondaryTierManager(ABC):
    cache_hit_source = "external_unspecified"

    def __init__(
        self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, backpressure_detector: Any = None
    ) -> None:
        assert primary_kv_view.strides is not None
        self.block_size_bytes = primary_kv_view.strides[0]
        self.tier_type = tier_type
        self.locality: Any = None

    @abstractmethod
    def lookup(self, key: Any, req_context: Any) -> Any: ...

    @abstractmethod
    def submit_store(self, job_metadata: Any) -> None: ...

    @abstractmethod
    def submit_load(self, job_metadata: Any) -> None: ...

    @abstractmethod
    def get_finished_jobs(self) -> Any: ...

    @abstractmethod
    def on_new_request(self, req_context: Any) -> Any: ...

    @abstractmethod
    def drain_jobs(self) -> None: ...
