"""Base classes of vLLM and SGLang for tests: the real classes of an installed package, else stand-ins.

script/serving-suite runs the tests with the real classes.
"""

import sys
from pathlib import Path

# Stand-ins come last: an installed package has precedence.
sys.path.append(str(Path(__file__).parent / "standins"))
