"""Base classes of vLLM and SGLang for tests: the real classes of an installed package, else stand-ins.

script/serving-suite runs the tests with the real classes.
"""

import sys
from pathlib import Path

# Last: installed packages come first.
sys.path.append(str(Path(__file__).parent / "standins"))
