"""What a case is: a function that measures in a directory and returns figures with their goals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """One figure with its goal.

    Attributes:
        name: what was measured.
        value: the figure.
        unit: of it.
        goal: what it must reach.
        is_bound: whether the goal is an upper bound; otherwise a lower one.
        details: figures worth printing, by name.
    """

    name: str
    value: float
    unit: str
    goal: float
    is_bound: bool = False
    details: dict[str, str] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.value <= self.goal if self.is_bound else self.value >= self.goal


class Case(Protocol):
    """Measures in an empty directory; `quick` checks that it works and shows little."""

    def __call__(self, base: Path, *, quick: bool) -> list[Figure]:
        """Return the figures."""
