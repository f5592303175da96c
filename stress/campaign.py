"""What a campaign is: a module of this package, named after the outcome that it forbids.

Its name starts with `no_`, its docstring's first line names what is forbidden, and it has

    SHORT_SECONDS = 20.0                     # budget of a `--short` run
    def run(budget: Budget) -> Outcome: ...

`run` tries to bring the forbidden outcome about until the budget is used up. Each try is a case,
and all random choices follow from `budget.seed`, so that a run can be repeated. A campaign that ran
no case has proved no property, and counts as failed; so does one that left out a part of itself.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

CAMPAIGN_PREFIX = "no_"
PACKAGE_DIRECTORY = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Budget:
    """How long to try, and where randomness starts.

    Attributes:
        seconds: after which a run ends, when each part of the campaign has had a case.
        cases: the most of them; None: no bound.
        seed: of all random choices.
        short: whether this is the pass that each change gets: what a long run does as a whole, a
            short one does in a part that the seed chooses.
    """

    seconds: float
    cases: int | None
    seed: int
    short: bool = False


@dataclass
class Outcome:
    """What a run brought.

    Attributes:
        cases: how many were run.
        violations: one sentence for each forbidden outcome seen.
        notes: figures worth printing.
        untried: names of parts that ran no case, though none of the budget forbids it.
    """

    cases: int
    violations: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    untried: list[str] = field(default_factory=list)

    def require(self, budget: Budget, parts: Mapping[str, int]) -> None:
        """Note the parts without a case, unless it is the bound of cases or a violation that ended.

        Args:
            budget: of the run.
            parts: the number of cases of each part.
        """
        if budget.cases is None and not self.violations:
            self.untried += [part for part, cases in parts.items() if cases <= 0]

    @property
    def failed(self) -> bool:
        """Whether a violation was found, or no case was run, or none of a part."""
        return bool(self.violations or self.untried) or self.cases <= 0


class Campaign(Protocol):
    """A campaign module, as the runner sees it."""

    SHORT_SECONDS: float

    def run(self, budget: Budget) -> Outcome:
        """Try to bring the forbidden outcome about."""


def campaign_names() -> list[str]:
    """Return the names of all campaigns, sorted."""
    found = pkgutil.iter_modules([str(PACKAGE_DIRECTORY)])
    return sorted(module.name for module in found if module.name.startswith(CAMPAIGN_PREFIX))


def summary(name: str) -> str:
    """Return what a campaign forbids: its docstring's first line, read without importing it."""
    path = PACKAGE_DIRECTORY / f"{name}.py"
    if not path.exists():
        path = PACKAGE_DIRECTORY / name / "__init__.py"
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def load(name: str) -> Campaign:
    """Import a campaign.

    Raises:
        TypeError: the module lacks `SHORT_SECONDS` or `run`.
    """
    module = importlib.import_module(f"stress.{name}")
    if not isinstance(getattr(module, "SHORT_SECONDS", None), int | float):
        raise TypeError(f"stress/{name}.py needs SHORT_SECONDS, a number of seconds")
    if not callable(getattr(module, "run", None)):
        raise TypeError(f"stress/{name}.py needs run(budget)")
    return cast("Campaign", module)
