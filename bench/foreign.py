"""CPU time of foreign programs beside a benchmark, on the cores allowed to it.

The time is the busy time of these cores, by /proc/stat, less the time of this process and of the processes started by
this process. So it includes processes of other containers, and the time given by a hypervisor to other guests.
Interrupts and the kernel's threads are left out: most of their work is the benchmark's own traffic. Where the kernel
counts softirqs also as time of a process, the softirqs within the benchmark's processes make the result too small.
Ticks are a sample: times below a tenth of a second mean nothing.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic

from rmemcached.bench.processes import children

NOTED = 0.1  # of a core used by foreign programs in a round: a note tells of more
LEAST_SECONDS = 0.1  # of CPU
TICKS = os.sysconf("SC_CLK_TCK")  # a second
# Columns of /proc/stat: user, nice, system, steal. The columns of guests are in the first two.
BUSY = (1, 2, 3, 8)
KERNEL = "2"  # the parent of the kernel's threads, invisible in a container


def busy_seconds(cores: set[int]) -> float:
    """Time spent by these cores on processes and on other guests."""
    names = {f"cpu{core}" for core in cores}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu")]
    return sum(int(line[column]) for line in lines if line[0] in names for column in BUSY) / TICKS


def numbers(process: str | int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, from the state on. Raises OSError when the process has gone."""
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
    """CPU time of this process and of all processes started or adopted by it, also of ended processes."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(each.ru_utime + each.ru_stime for each in used)
    for child in children():
        with contextlib.suppress(OSError):
            total += sum(map(int, numbers(child)[11:15])) / TICKS  # the child's time, and its ended children's
    return total


def foreign_seconds(cores: set[int]) -> float:
    return busy_seconds(cores) - kernel_seconds() - own_seconds()


@contextlib.contextmanager
def watched() -> Iterator[Callable[[], float]]:
    """Yields a function. Called after the block, the function returns how many cores foreign programs have used during
    the block; 0: as good as none.

    Processes started by this process must have ended by then, or still be its children.
    """
    cores = os.sched_getaffinity(0)
    begin, before = monotonic(), foreign_seconds(cores)
    used: list[float] = []
    yield lambda: used[0]
    found = foreign_seconds(cores) - before
    used.append(found / (monotonic() - begin) if found > LEAST_SECONDS else 0.0)


def note(rounds: Sequence[float]) -> str:
    """A note about the cores used by others in each round; "" where they used little."""
    noted = [cores for cores in rounds if cores > NOTED]
    if not noted:
        return ""
    return (
        f"other processes used up to {100 * max(noted):.0f} % of a core in {len(noted)} of {len(rounds)} rounds:"
        " what polls or waits for a core is slower than on an idle machine, and ratios change with it"
    )
