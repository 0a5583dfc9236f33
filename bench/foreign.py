"""How much CPU others use beside a benchmark, of the cores that it may use.

It is what these cores were busy with, by /proc/stat, without what this process and those that it has started have used.
So it has processes of other containers in it, and the time that a hypervisor has given to other guests. Interrupts
and the kernel's threads are nobody's: most of what they do is the benchmark's own traffic. Where the kernel counts
softirqs among the time of a process, too, others are understated by the benchmark's own. Ticks are a sample: times
below a tenth of a second mean nothing.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic

from rmemcached.bench.processes import children

NOTED = 0.1  # of a core, in a round
LEAST_SECONDS = 0.1  # of CPU
TICKS = os.sysconf("SC_CLK_TCK")  # a second
# Columns of /proc/stat: user, nice, system, steal. The columns of guests are in the first two.
BUSY = (1, 2, 3, 8)
KERNEL = "2"  # the parent of the kernel's threads, which a container does not see


def busy_seconds(cores: set[int]) -> float:
    """What these cores have spent on processes and on other guests."""
    names = {f"cpu{core}" for core in cores}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu")]
    return sum(int(line[column]) for line in lines if line[0] in names for column in BUSY) / TICKS


def numbers(process: str | int) -> list[str]:
    """What /proc/PID/stat has behind the name, from the state on. Raises OSError when the process has gone."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def kernel_seconds() -> float:
    """CPU time of the kernel's threads."""
    total = 0
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found = numbers(path.name)
            total += int(found[11]) + int(found[12]) if found[1] == KERNEL else 0
    return total / TICKS


def own_seconds() -> float:
    """CPU time of this process and of all that it has started or adopted, also of those that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(each.ru_utime + each.ru_stime for each in used)
    for child in children():
        with contextlib.suppress(OSError):
            total += sum(map(int, numbers(child)[11:15])) / TICKS  # its own, and its children's that have ended
    return total


def foreign_seconds(cores: set[int]) -> float:
    return busy_seconds(cores) - kernel_seconds() - own_seconds()


@contextlib.contextmanager
def watched() -> Iterator[Callable[[], float]]:
    """Gives a function that says, once all is over, how many cores others have used meanwhile; 0: as good as none.

    Processes that this one has started must have ended by then, or be its children still.
    """
    cores = os.sched_getaffinity(0)
    begin, before = monotonic(), foreign_seconds(cores)
    used: list[float] = []
    yield lambda: used[0]
    found = foreign_seconds(cores) - before
    used.append(found / (monotonic() - begin) if found > LEAST_SECONDS else 0.0)


def note(rounds: Sequence[float]) -> str:
    """What a reader must know of the cores that others have used in each round; "" where that is little."""
    noted = [cores for cores in rounds if cores > NOTED]
    if not noted:
        return ""
    return (
        f"other processes used up to {100 * max(noted):.0f} % of a core in {len(noted)} of {len(rounds)} rounds:"
        " what polls or waits for a core is slower than on an idle machine, and ratios change with it"
    )
