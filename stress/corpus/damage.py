"""What a damage is, where it hits, and the outcome required of each interface.

A damage is one small function that spoils a copy of a good queue, with an outcome per interface:

| interface | what is done |
| --- | --- |
| `opening` | open for writing in the boot in which the queue was closed; send; read all |
| `after_cut` | the same with the shared state of another boot, as after a power cut |
| `reading_after_cut` | open with `read_only=True` and the state of another boot, then replay |
| `read_only` | open with `read_only=True` |
| `reading` | the same, then replay from the head, by time, from past the damage, and the last |
| `verify` | `verify_queue` |
| `repair` | `repair_queue`, then open, read and salvage what it left |
| `salvage` | `salvage_queue` into a new directory |
| `named` | open a named consumer, receive all, acknowledge, and open it again |

Outcomes are data; `judge.py` compares them with what happened, `table.py` prints them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from stress.corpus.victim import Victim

Keeps = Literal["all", "before", "any"]
INTERFACES = (
    "opening",
    "after_cut",
    "reading_after_cut",
    "read_only",
    "reading",
    "verify",
    "repair",
    "salvage",
    "named",
)


@dataclass(frozen=True)
class Hit:
    """Where a damage is, as an error or a problem must name it.

    Attributes:
        file: name of the file.
        position: place in it; None when the file as a whole is meant, or several places are.
        sequence: of the first message that is affected; None when none is.
        page: number of the page that is affected; None when none is.
        others: names of files that may be blamed as well, because the two contradict each other.
        whole: the page as a whole is meant, so that a problem need not name a message.
    """

    file: str
    position: int | None = None
    sequence: int | None = None
    page: int | None = None
    others: tuple[str, ...] = ()
    whole: bool = False


@dataclass(frozen=True)
class Works:
    """It works, and delivers what was sent.

    Attributes:
        keeps: which messages are there afterwards: all, those before the damage (whole batches),
            or any that were sent.
        reports: a part of one action that recovery reports.
    """

    keeps: Keeps = "all"
    reports: str = ""

    def __str__(self) -> str:
        kept = {"all": "works", "before": "works up to the damage", "any": "works"}[self.keeps]
        return f"{kept}; reports “{self.reports}”" if self.reports else kept


@dataclass(frozen=True)
class Fails:
    """A typed error, of this class, naming file, position and sequence of the hit.

    Attributes:
        kind: the class's name; several are separated by a bar.
        reason: a part of its reason, or of its text if it has no reason.
        placed: whether the position must be that of the hit.
    """

    kind: str
    reason: str = ""
    placed: bool = True

    def __str__(self) -> str:
        kinds = " or ".join(f"`{kind}`" for kind in self.kind.split("|"))
        return f"{kinds}: {self.reason}" if self.reason else kinds


@dataclass(frozen=True)
class ByMark:
    """What recovery does depends on the durable mark.

    Attributes:
        below: the damage is below the mark. In a page before that of the mark it may work as well,
            because recovery need not check such a page.
        above: the damage is at the mark or above it.
        may_repair: below the mark it may be repaired as well, if that loses no message.
        after: the damage is in a page after that of the mark; None: as above it.
    """

    below: Fails
    above: Works | Fails
    may_repair: bool = False
    after: Works | None = None

    def __str__(self) -> str:
        below = f"{self.below}, or it is repaired" if self.may_repair else self.below
        after = f"; in a page after that of the mark {self.after}" if self.after else ""
        return f"below the durable mark {below}; above it {self.above}{after}"


@dataclass(frozen=True)
class Until:
    """Reading gives all messages before the hit, then this error; the next page reads again."""

    error: Fails
    continues: bool = True

    def __str__(self) -> str:
        return f"up to the damage, then {self.error}"


@dataclass(frozen=True)
class Prefix:
    """A reader gets no less than a writer would keep, or a typed error; never silently less."""

    def __str__(self) -> str:
        return "all that is durable, or a typed error"


@dataclass(frozen=True)
class Finds:
    """Verify reports a problem with this reason at the hit, and changes no file."""

    reason: str
    placed: bool = True

    def __str__(self) -> str:
        return f"finds “{self.reason}”"


@dataclass(frozen=True)
class FindsNothing:
    """Verify reports no problem."""

    def __str__(self) -> str:
        return "no problem"


@dataclass(frozen=True)
class Repairs:
    """Repair succeeds: verify then reports no problem, and every message is there.

    Attributes:
        reports: a part of one action that repair reports.
        keeps: which messages are there: any, where a page was lost and repair reports the loss.
    """

    reports: str = ""
    keeps: Keeps = "all"

    def __str__(self) -> str:
        return f"repairs it; reports “{self.reports}”" if self.reports else "repairs it"


@dataclass(frozen=True)
class Leaves:
    """Repair would lose a message: it leaves the problem, and makes no page worse."""

    def __str__(self) -> str:
        return "leaves it and reports it"


@dataclass(frozen=True)
class Idle:
    """Repair makes no change."""

    def __str__(self) -> str:
        return "makes no change"


@dataclass(frozen=True)
class Saves:
    """Salvage copies every intact frame at its position, and reports the others as lost.

    Attributes:
        knows: whether the lost messages can be known exactly; otherwise more, or fewer, may be
            reported, because no file is left that records where the queue ended.
        reads: whether it may read the page that is hit; a newer format it may not.
        contradicts: whether the page repeats sequences of the page before it with other contents:
            each of those messages is reported as a conflict, and the first copy was kept.
    """

    knows: bool = True
    reads: bool = True
    contradicts: bool = False

    def __str__(self) -> str:
        known = "reports the rest" if self.knows else "reports the rest and that there may be more"
        which = "all that is whole" if self.reads else "the other pages"
        conflicts = " and what contradicts it" if self.contradicts else ""
        return f"copies {which}, {known}{conflicts}"


@dataclass(frozen=True)
class Resumes:
    """The named consumer continues at its cursor, or at the tail, and gets all that follows."""

    at: Literal["cursor", "tail"]

    def __str__(self) -> str:
        return f"continues at the {self.at}"


Opening = Works | Fails | ByMark
OutcomeOf = (
    Works
    | Fails
    | ByMark
    | Until
    | Prefix
    | Finds
    | FindsNothing
    | Repairs
    | Leaves
    | Idle
    | Saves
    | Resumes
)

WORKS = Works()
CUT_OFF = Works("before", "the next sequence is")
"""Recovery cuts off what a power cut left after the last whole batch, and reports that."""


@dataclass(frozen=True)
class Damage:
    """One named damage; see the module's text.

    Attributes:
        name: of the damage.
        what: what is done, in one sentence.
        do: does it to a copy.
        outcomes: by the name of the interface; an interface that makes no sense is missing.
        pages: the queue must have so many, for the damage to make sense.
        large: it is one of messages larger than a page, and done where there are some.
    """

    name: str
    what: str
    do: Callable[[Victim], Hit]
    outcomes: dict[str, OutcomeOf]
    pages: int = 1
    large: bool = False


DAMAGES: dict[str, Damage] = {}


@dataclass(frozen=True)
class Kind:
    """Outcomes that several damages share; a call with a name registers one more of the kind."""

    outcomes: dict[str, OutcomeOf]
    pages: int = 1
    large: bool = False

    def but(self, *, pages: int | None = None, **outcomes: OutcomeOf) -> Kind:
        """Return the same with some outcomes replaced."""
        return replace(
            self,
            outcomes={**self.outcomes, **outcomes},
            pages=self.pages if pages is None else pages,
        )

    def without(self, *interfaces: str) -> Kind:
        """Return the same with some interfaces left out."""
        left = {
            interface: outcome
            for interface, outcome in self.outcomes.items()
            if interface not in interfaces
        }
        return replace(self, outcomes=left)

    def __call__(
        self, name: str, what: str, **outcomes: OutcomeOf
    ) -> Callable[[Callable[..., Hit]], Callable[..., Hit]]:
        """Register the decorated function as a damage of this kind."""

        def register(do: Callable[..., Hit]) -> Callable[..., Hit]:
            self.add(name, what, do, **outcomes)
            return do

        return register

    def add(self, name: str, what: str, do: Callable[..., Hit], **outcomes: Any) -> None:  # noqa: ANN401
        """Register a damage."""
        assert name not in DAMAGES, f"two damages are called {name}"
        merged = {**self.outcomes, **outcomes}
        if "after_cut" in merged:
            merged.setdefault("reading_after_cut", Prefix())
        assert set(merged) <= set(INTERFACES), f"{name} has an unknown interface"
        ordered = {interface: merged[interface] for interface in INTERFACES if interface in merged}
        DAMAGES[name] = Damage(name, what, do, ordered, self.pages, self.large)


HARMLESS = Kind(
    {
        "opening": WORKS,
        "after_cut": WORKS,
        "read_only": WORKS,
        "reading": WORKS,
        "verify": FindsNothing(),
        "repair": Idle(),
        "salvage": Saves(),
    }
)
"""Every interface works as on a good queue, and verify reports no problem."""
