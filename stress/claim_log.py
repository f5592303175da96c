"""What workers of a group write down, and the proof made from it.

Every record has a time of the clock that all processes share, taken before or after the call that
it is about, so that for each claim there is a span in which it was live for certain: from when it
was in hand until its lease ended at the earliest, it was given back, or its worker was killed. No
two such spans of one message may overlap (I15), whatever was killed in between.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pagequeue.util.retry import Retry

CLAIMED, ENDING, ACKED, EXTENDED, REFUSED, CLOSING, TAKING, TAKEN, CUT, FLUSHED = range(10)
REJECTING, REJECTED = 10, 11
NOTHING: Final = -1
"""In place of a sequence: no message was available."""
BY_RULE: Final = -1
"""In place of the delay of a message that was given back: the one that the group gives it."""
VIOLATIONS_MAX = 20
FOREVER: Final = 2**62


class Letter(NamedTuple):
    """A dead letter, as far as it is compared with what the workers wrote down."""

    sequence: int
    deliveries: int
    reason: str


def reason_for(worker: int, number: int) -> str:
    """Return the reason that a worker rejects one of its claims for: no two are the same."""
    return f"rejected {worker} {number}"


class Did(NamedTuple):
    """What a worker did, or was about to do; times are in ns.

    With ENDING, `after` is the delay of a message that is given back.
    """

    kind: int
    worker: int
    number: int = 0  # of the claim, in its worker
    sequence: int = 0
    before: int = 0
    after: int = 0
    span: int = 0  # of the lease
    deliveries: int = 0


@dataclass
class Held:
    """One claim, as far as it was written down."""

    worker: int
    number: int
    sequence: int
    deliveries: int
    before: int
    start: int  # when it was in hand
    earliest_end: int  # of its lease
    latest_end: int
    ending: int = FOREVER  # when it began to be acknowledged or given back
    delay: int | None = None  # of one that is given back; None: it is not
    acked: int = 0  # or rejected
    rejecting: bool = False
    rejected: bool = False

    def sure_end(self, deaths: dict[int, int]) -> int:
        """Return the time up to which it was certainly live."""
        return min(self.earliest_end, self.ending, deaths.get(self.worker, FOREVER))


@dataclass
class Judge:
    """Reads a log and reports every violation.

    Attributes:
        deaths: by worker: the time before it was killed, or of its last record.
        letters: the dead letters.
        done: sequences that the group reports as done, in the end.
        deliveries_max: after which a message is a dead letter without being rejected.
        retry: the rule by which a message waits whose delivery failed; None: it is not checked.
        poison: sequences of messages that no worker acknowledges.
    """

    deaths: dict[int, int]
    letters: list[Letter]
    done: set[int]
    deliveries_max: int
    retry: Retry | None = None
    poison: frozenset[int] = frozenset()
    claims: int = 0
    waited: int = 0
    refused: int = 0
    rejected: int = 0
    cuts: list[int] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def wrong(self, text: str) -> None:
        """Note a violation."""
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(text)

    def judge(self, rows: Sequence[Did]) -> None:
        """Run all checks."""
        held: dict[tuple[int, int], Held] = {}
        epochs = [0, *(row.before for row in rows if row.kind == CUT), FOREVER]
        self.cuts = epochs[1:-1]
        flushes = [(row.before, row.after) for row in rows if row.kind == FLUSHED]
        begun: set[int] = set()
        for row in rows:
            self._take_in(row, held, begun)
        self._look_at_overlaps(held)
        self._look_at_acknowledged(held, epochs, flushes)
        self._look_at_letters(held)
        self._look_at_waiting(held, epochs)
        # A process killed right after taking a message has not recorded which one.
        unsaid = sum((row.kind == TAKING) - (row.kind == TAKEN) for row in rows)
        lost = sorted(self.done - begun - {letter.sequence for letter in self.letters})
        if len(lost) > unsaid:
            for sequence in lost:
                kind = "fails always" if sequence in self.poison else "is done"
                self.wrong(f"message {sequence} {kind}, and no worker acknowledged it: lost")

    def _take_in(self, row: Did, held: dict[tuple[int, int], Held], begun: set[int]) -> None:
        kind, before, after, span = row.kind, row.before, row.after, row.span
        key = row.worker, row.number
        if kind == CLAIMED:
            self.claims += 1
            if row.deliveries > self.deliveries_max:
                self.wrong(f"message {row.sequence}: delivery {row.deliveries}, which is too often")
            held[key] = Held(
                *key, row.sequence, row.deliveries, before, after, before + span, after + span
            )
        elif kind == TAKEN:
            begun.add(row.sequence)
        elif kind == CLOSING:
            for claim in held.values():
                if claim.worker == key[0]:
                    claim.ending = min(claim.ending, before)
        elif kind in {ENDING, ACKED, EXTENDED, REFUSED, REJECTING, REJECTED}:
            self._follow(kind, held[key], before, after, span, begun)

    def _follow(
        self, kind: int, claim: Held, before: int, after: int, span: int, begun: set[int]
    ) -> None:
        name = f"message {claim.sequence}, delivery {claim.deliveries}"
        if kind == ENDING:
            claim.ending = before
            if span:  # it is acknowledged, not given back
                begun.add(claim.sequence)
            else:
                claim.delay = after
        elif kind == REJECTING:  # its lease begins anew, and can be shorter then
            claim.ending, claim.rejecting = before, True
            claim.earliest_end = min(claim.earliest_end, before + span)
        elif kind in {ACKED, REJECTED}:
            claim.acked, claim.rejected = after, kind == REJECTED
            self.rejected += claim.rejected
            if before > claim.latest_end:
                self.wrong(f"{name}: acknowledged {before - claim.latest_end} ns after its lease")
        elif kind == EXTENDED:
            claim.earliest_end, claim.latest_end = before + span, after + span
        else:
            self.refused += 1
            if after < claim.earliest_end:
                self.wrong(f"{name}: refused {claim.earliest_end - after} ns before its lease ends")

    def _look_at_overlaps(self, held: dict[tuple[int, int], Held]) -> None:
        by_message: dict[int, list[Held]] = defaultdict(list)
        for claim in held.values():
            by_message[claim.sequence].append(claim)
        for sequence, claims in by_message.items():
            claims.sort(key=lambda claim: claim.start)
            latest: Held | None = None
            for claim in claims:
                if claim.sure_end(self.deaths) <= claim.start:
                    continue  # it came so late into its hands that its lease could be over
                if latest is not None and claim.start < latest.sure_end(self.deaths):
                    self.wrong(
                        f"message {sequence}: delivery {claim.deliveries} while delivery "
                        f"{latest.deliveries} was live: two claims at one instant "
                        f"(by {claim.worker} at {claim.start}, by {latest.worker} from "
                        f"{latest.start} until {latest.sure_end(self.deaths)}: lease "
                        f"{latest.earliest_end}, ending {latest.ending}, death "
                        f"{self.deaths.get(latest.worker)}; cuts {self.cuts})"
                    )
                if latest is None or claim.sure_end(self.deaths) > latest.sure_end(self.deaths):
                    latest = claim

    def _look_at_acknowledged(
        self,
        held: dict[tuple[int, int], Held],
        epochs: list[int],
        flushes: list[tuple[int, int]],
    ) -> None:
        """An acknowledged message is redelivered only after a power cut, if it was not flushed."""
        acked: dict[int, int] = {}
        for claim in sorted(held.values(), key=lambda claim: claim.start):
            at = acked.get(claim.sequence)
            if at is not None and claim.before > at:
                cut = next(time for time in epochs if time > at)
                was_flushed = any(at < begin and end < cut for begin, end in flushes)
                if claim.before < cut or was_flushed:
                    self.wrong(
                        f"message {claim.sequence}: delivered again after its acknowledgement"
                        + (", which was flushed" if was_flushed else "")
                    )
            if claim.acked:
                acked[claim.sequence] = claim.acked
                if claim.sequence in self.poison and not claim.rejected:
                    self.wrong(f"message {claim.sequence} fails always, and was acknowledged")

    def _look_at_waiting(self, held: dict[tuple[int, int], Held], epochs: list[int]) -> None:
        """A message whose delivery failed is not claimed before its delay is over.

        If its worker died, closed the group, or kept it too long, it is claimed without others.
        """
        if self.retry is None:
            return
        batches = Counter((claim.worker, claim.before) for claim in held.values())
        by_message: dict[int, dict[int, Held]] = defaultdict(dict)
        for claim in sorted(held.values(), key=lambda claim: claim.start):
            last = by_message[claim.sequence].get(claim.deliveries - 1)
            by_message[claim.sequence][claim.deliveries] = claim
            if last is None or any(last.before < cut < claim.start for cut in epochs):
                continue
            self.waited += 1
            name = f"message {claim.sequence}, delivery {claim.deliveries}"
            delay = self.retry.delay_ns(claim.sequence, last.deliveries)
            if last.delay not in {None, BY_RULE}:
                delay = min(delay, last.delay or 0)  # its lease may have ended first
            due = last.sure_end(self.deaths) + delay
            if claim.start < due:
                self.wrong(f"{name}: claimed {due - claim.start} ns before it is due")
            was_lost = last.delay is None and not last.rejecting
            if was_lost and batches[claim.worker, claim.before] > 1:
                self.wrong(f"{name}: claimed with others, though its worker was lost")

    def _look_at_letters(self, held: dict[tuple[int, int], Held]) -> None:
        """Each rejected claim is one dead letter, and there is no other before its deliveries.

        A reject that was killed, or whose lease ended meanwhile, can have sent its letter.
        """
        claims = {reason_for(*key): claim for key, claim in held.items() if claim.rejecting}
        counts = Counter(letter.reason for letter in self.letters)
        for reason, claim in claims.items():
            name, count = f"message {claim.sequence}, delivery {claim.deliveries}", counts[reason]
            if count > 1 or (claim.rejected and count == 0):
                self.wrong(f"{name}: rejected, and {count} times among the dead letters")
        for letter in self.letters:
            rejected = claims.get(letter.reason)
            name = f"dead letter of message {letter.sequence}, delivery {letter.deliveries}"
            if rejected is None:
                if letter.deliveries < self.deliveries_max:
                    self.wrong(f"{name}: nobody rejected it")
            elif (rejected.sequence, rejected.deliveries) != letter[:2]:
                self.wrong(
                    f"{name}: message {rejected.sequence}, delivery {rejected.deliveries} "
                    "was rejected"
                )
