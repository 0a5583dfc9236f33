"""pytest's plugin of script/serving-suite: SGLang's own base class, where all of SGLang cannot be imported.

sglang/__init__.py imports the whole engine, for a GPU. So the plugin makes the package without this file; the package's
modules are real.
"""

import importlib.util
import sys
import types


def pytest_configure() -> None:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None and spec.submodule_search_locations
    package = types.ModuleType("sglang")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["sglang"] = package
    for name in ("vllm.v1.kv_offload.tiering.base", "sglang.srt.mem_cache.hicache_storage"):
        file = importlib.import_module(name).__file__
        assert file is not None and "site-packages" in file, f"{name} is {file}"
