"""Rows of figures for subcommands that take no contenders, and make their cases during the measurement."""

from __future__ import annotations

from typing import Any

from rmemcached.bench.document import Record
from rmemcached.bench.measure import Case, Figure


class Sheet:
    """The measurements of a round so far, by case and contender."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.cases: dict[str, dict[str, Any]] = {}
        self.samples: dict[str, list[dict[str, Any]]] = {}

    def add(
        self,
        case: str,
        contender: str,
        value: float,
        unit: str,
        *,
        group: str = "",
        better: str = "lower",
        bound: str = "",
        floor: str = "",
        parameters: dict[str, Any] | None = None,
        more: dict[str, tuple[float, str, str]] | None = None,
    ) -> None:
        """Adds a value, in the order of measurement.

        `group` names the table; `bound` is as in Case; `more`: {figure: (value, unit, better)}.
        """
        name = f"{group}: {case}" if group else case
        others = {key: Figure(key, of, which) for key, (_, of, which) in (more or {}).items()}
        figures = (Figure("value", unit, better), *others.values())
        made = self.cases.setdefault(
            name,
            {"parameters": parameters or {}, "group": group, "figures": figures, "floors": {}, "bounds": {}},
        )
        if floor:
            made["floors"][contender] = floor
        if bound:
            made["bounds"][contender] = bound
        values = {figures[0].name: value, **{key: found for key, (found, _, _) in (more or {}).items()}}
        samples = self.samples.setdefault(name, [])
        samples.append(self.record.round.sample(name, contender, len(samples) + 1, values))

    def finish(self) -> None:
        """Hands all cases to the record."""
        for name, made in self.cases.items():
            self.record.case(Case(name, **made), self.samples[name])
