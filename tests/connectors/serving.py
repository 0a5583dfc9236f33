"""Base classes of vLLM and SGLang for tests: the real ones where they are installed, else stand-ins.

script/serving-suite runs the tests with the real ones.
"""

import sys
from pathlib import Path

# Last: what is installed comes first.
sys.path.append(str(Path(__file__).parent / "standins"))
