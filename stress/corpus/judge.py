"""Compare what an interface saw with what the corpus requires; a disagreement is one sentence."""

from __future__ import annotations

import itertools
import os
import stat
from typing import TYPE_CHECKING, Any

from pagequeue import format as fmt
from stress.corpus.damage import (
    ByMark,
    Fails,
    Finds,
    FindsNothing,
    Hit,
    Idle,
    Leaves,
    Prefix,
    Repairs,
    Resumes,
    Saves,
    Until,
    Works,
)
from stress.corpus.interfaces import SENT, Row, Seen, digest, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stress.corpus.damage import OutcomeOf
    from stress.corpus.shapes import Place
    from stress.corpus.victim import Victim


class Judge:
    """Compares what was seen of one damaged queue; created after the damage, before any interface.

    Attributes:
        sent: every message of the good queue, by sequence.
        whole: sequences of the messages whose frames are unchanged at their positions.
    """

    def __init__(self, victim: Victim, hit: Hit) -> None:
        self.victim = victim
        self.hit = hit
        self.original = victim.original
        self.sent: list[Row] = [row_of(place) for place in self.original.places]
        self.whole = {place.sequence for place in self._whole()}
        self.end = len(self.sent)

    def _whole(self) -> Iterator[Any]:
        for number in range(self.original.head, self.original.active + 1):
            name = self.victim.page(number)
            path = self.victim.path(name)
            try:
                if not stat.S_ISREG(path.lstat().st_mode):
                    continue
                data = path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                continue
            before = self.original.contents[name]
            if number in self.victim.compressed:
                gone = self.victim.compressed[number]
                yield from (p for p in self.original.of_page(number) if p.sequence not in gone)
                continue
            for place in self.original.of_page(number):
                if place.pages > 1:
                    if all(map(self._is_as_sent, range(number, number + place.pages))):
                        yield place
                    continue
                until = place.position + fmt.FRAME_HEADER_BYTES + len(place.payload)
                if data[place.position : until] == before[place.position : until]:
                    yield place

    def _is_as_sent(self, number: int) -> bool:
        """Whether all bytes of a page after its header are those of the good queue."""
        name = self.victim.page(number)
        path = self.victim.path(name)
        here = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        before = self.original.contents[name]
        return here[fmt.PAGE_HEADER_BYTES :] == before[fmt.PAGE_HEADER_BYTES :]

    # --- any outcome ------------------------------------------------------------------------------

    def disagreements(self, interface: str, outcome: OutcomeOf, seen: Seen) -> list[str]:
        """Return what is not as it must be."""
        if isinstance(outcome, ByMark):
            return self._by_mark(interface, outcome, seen)
        if isinstance(outcome, Prefix):
            return self._prefix(seen)
        error = seen.get("error")
        if isinstance(outcome, Fails):
            if error is None:
                return [f"{outcome} was expected, it succeeded"]
            return self._error(outcome, error)
        if error is not None:
            return [f"{outcome} was expected: {error['kind']}: {error['text']}"]
        judges = {
            Works: self._works,
            Until: self._until,
            Finds: self._finds,
            FindsNothing: self._finds_nothing,
            Repairs: self._repaired,
            Leaves: self._repaired,
            Idle: self._repaired,
            Saves: self._saved,
            Resumes: self._resumed,
        }
        return judges[type(outcome)](interface, outcome, seen)  # type: ignore[operator,no-any-return]

    def _by_mark(self, interface: str, outcome: ByMark, seen: Seen) -> list[str]:
        sequence = self.hit.sequence or 0
        is_lost = outcome.below.kind == "MissingPage" and self._is_durable_page()
        if self.hit.sequence is None or (sequence >= self._durable() and not is_lost):
            above = outcome.above if self._is_durable_page() else outcome.after or outcome.above
            return self.disagreements(interface, above, seen)
        before_mark = (self.hit.page or 0) < self._mark_page()
        if (before_mark or outcome.may_repair) and "error" not in seen:
            return self.disagreements(interface, Works("all"), seen)
        return self.disagreements(interface, outcome.below, seen)

    def _is_durable_page(self) -> bool:
        """Whether the page hit was on stable storage under its name, with messages or without."""
        return (self.hit.page or 0) <= self.victim.durable_page

    def _durable(self) -> int:
        return self.victim.durable

    def _mark_page(self) -> int:
        durable = self._durable()
        before = [place.page for place in self.original.places if place.sequence < durable]
        return max(before, default=self.original.head)

    def _error(self, wanted: Fails, error: Seen) -> list[str]:
        wrong = []
        if error["kind"] not in wanted.kind.split("|"):
            wrong.append(f"{wanted} was expected: {error['kind']}: {error['text']}")
        elif wanted.reason not in error["reason"] and wanted.reason not in error["text"]:
            wrong.append(f"the reason lacks “{wanted.reason}”: {error['text']}")
        elif self.hit.file and os.path.basename(error["path"] or "") not in self._files():
            wrong.append(f"the error names {error['path']}, not {self.hit.file}")
        elif wanted.placed and not self._may_be_at(error["position"]):
            wrong.append(f"the error has position {error['position']}, not {self.hit.position}")
        elif (
            error["kind"] == "CorruptFrame"
            and not self.hit.whole
            and self.hit.sequence is not None
            and error["sequence"] not in {self.hit.sequence, self._batch_of_hit().sequence}
        ):
            wrong.append(f"the error has message {error['sequence']}, not {self.hit.sequence}")
        return wrong

    def _batch_of_hit(self) -> Place:
        """Return the message with which the batch of the hit begins: recovery drops whole ones."""
        sequence = min(self.hit.sequence or 0, self.end - 1)
        return self.original.places[self.original.whole_before(sequence)]

    def _may_be_at(self, position: int | None) -> bool:
        """Whether an error may name this position."""
        if self.hit.position is None or position == self.hit.position:
            return True
        known = self.hit.sequence is not None and not self.hit.whole
        return known and position == self._batch_of_hit().position

    def _files(self) -> set[str]:
        return {self.hit.file, *self.hit.others}

    def _prefix(self, seen: Seen) -> list[str]:
        """Judge reading before the recovery that the next writer does."""
        writer = self.outcome_of("after_cut")
        error = seen.get("error") or seen["read_error"]
        if error is None:
            wrong = self._invented(seen["read"])
            durable = self._durable()
            end = seen["read"][-1][0] + 1 if seen["read"] else 0
            if end < durable:
                wrong.append(f"read up to {end} where {durable} are durable, and no error")
            if isinstance(writer, Fails) and len(seen["read"]) < self.end:
                wrong.append(f"a reader does not notice it, a writer must see {writer}")
            return wrong
        opens = isinstance(self.outcome_of("read_only"), Works)
        torn = (
            isinstance(writer, ByMark)
            and isinstance(writer.above, Works)
            and self.hit.sequence is not None
            and self.hit.sequence >= self._durable()
        )
        anything = error["kind"] != "MissingPage"  # else no page is readable
        if opens and anything and (torn or writer == Works()):
            return [f"no durable message is damaged: {error['kind']}: {error['text']}"]
        return []

    # --- messages ---------------------------------------------------------------------------------

    def _kept(self, keeps: str) -> int:
        if keeps == "before":
            return self.original.whole_before(self.hit.sequence or 0)
        return self.end

    def _invented(self, rows: list[list[Any]], more: list[Row] = []) -> list[str]:  # noqa: B006 - only read
        """Return what is wrong with messages that may be any of those sent, in order."""
        wrong = []
        known = {row[0]: row for row in [*self.sent, *more]}
        for row in rows:
            expected = known.get(row[0])
            same = expected is not None and row[2] == expected[2]
            if same and expected is not None and row[1] != expected[1]:
                same = row[0] in self.victim.altered
            if not same:
                wrong.append(f"message {row[0]} was never sent like that")
        if any(after[0] <= before[0] for before, after in itertools.pairwise(rows)):
            wrong.append("messages came out of order")
        return wrong[:3]

    def _works(self, interface: str, outcome: Works, seen: Seen) -> list[str]:
        wrong: list[str] = []
        if outcome.reports and not any(
            outcome.reports in action for action in seen.get("reports", [])
        ):
            wrong.append(f"“{outcome.reports}” was not reported, but {seen.get('reports')}")
        if interface in {"opening", "after_cut"}:
            wrong += self._sent_on(outcome, seen)
            if interface == "after_cut" and outcome.reports and seen["problems"]:
                wrong.append(f"recovery left what verify finds: {seen['problems'][:2]}")
        elif interface == "read_only" and outcome.keeps == "all" and seen["tail"] != self.end:
            wrong.append(f"the tail is {seen['tail']}, not {self.end}")
        elif interface == "reading":
            wrong += (
                self._read_all(seen) if outcome.keeps == "all" else self._invented(seen["read"])
            )
        return wrong

    def _sent_on(self, outcome: Works, seen: Seen) -> list[str]:
        """Judge opening, sending and reading."""
        first = seen["sent"][0]
        later = [row for row in seen["read"] if row[0] >= first]
        more = [(row[0], row[1], digest(SENT[row[0] - first])) for row in later[: len(SENT)]]
        if outcome.keeps == "any":
            return (
                []
                if not seen["read"]
                else self._invented([r for r in seen["read"] if r[0] < first])
            )
        kept = self._kept(outcome.keeps)
        wrong = []
        if first != kept:
            wrong.append(f"the next message got sequence {first}, not {kept}")
        if seen["sent"] != list(range(first, first + len(SENT))):
            wrong.append(f"sequences are not consecutive: {seen['sent']}")
        wrong += self._invented([row for row in seen["read"] if row[0] < kept] + later, more)
        stays = isinstance(self.outcome_of("reading"), Until) and outcome.keeps == "all"
        if seen["read_error"] is not None and not stays:
            wrong.append(f"reading failed past it: {seen['read_error']['text']}")
        elif seen["read_error"] is None and len(seen["read"]) != kept + len(SENT):
            wrong.append(f"{len(seen['read'])} messages were read, not {kept + len(SENT)}")
        return wrong

    def outcome_of(self, interface: str) -> OutcomeOf | None:
        """Return the required outcome of another interface, as the damage declares it."""
        return self.victim.outcomes.get(interface)

    def _read_all(self, seen: Seen) -> list[str]:
        wrong = []
        if seen["read_error"] is not None:
            wrong.append(f"reading failed: {seen['read_error']['text']}")
        elif len(seen["read"]) != self.end:
            wrong.append(f"{len(seen['read'])} messages were read, not {self.end}")
        wrong += self._invented(seen["read"])
        for sequence, rows, error in seen["since"]:
            if error is not None:
                wrong.append(f"reading by time failed: {error['text']}")
            elif [row[0] for row in rows] != list(range(self._first_at(sequence), self.end)):
                wrong.append(f"by time, not all from {sequence} on were read")
        if seen["last_error"] is not None or [row[0] for row in seen["last"]] != list(
            range(max(0, self.end - 3), self.end)
        ):
            wrong.append(f"the last messages are {seen['last']}, {seen['last_error']}")
        return wrong

    def _first_at(self, sequence: int) -> int:
        """Return the first message with the time of this one."""
        return next(row[0] for row in self.sent if row[1] == self.sent[sequence][1])

    def _until(self, _: str, outcome: Until, seen: Seen) -> list[str]:
        stop = self.hit.sequence or 0
        wrong = self._invented(seen["read"])
        if seen["read_error"] is None:
            wrong.append(f"{outcome.error} was expected, {len(seen['read'])} messages were read")
        else:
            wrong += self._error(outcome.error, seen["read_error"])
        if len(seen["read"]) != stop:
            wrong.append(f"{len(seen['read'])} messages were read before the error, not {stop}")
        if outcome.continues and self.hit.page is not None and self.hit.page < self.original.active:
            pages = range(self.hit.page + 1, self.original.active + 1)
            behind = next(number for number in pages if self.original.of_page(number))
            rows, error = seen["from_page"][str(behind)]
            first = self.original.of_page(behind)[0].sequence
            if error is not None:
                # The search for a message can cross the damaged page; then it must report that.
                wrong += [f"after the page: {text}" for text in self._error(outcome.error, error)]
            elif [row[0] for row in rows] != list(range(first, self.end)):
                wrong.append("reading did not continue after the page")
        return wrong

    def _resumed(self, _: str, outcome: Resumes, seen: Seen) -> list[str]:
        start = self.end if outcome.at == "tail" else self.hit.sequence or 0
        wrong = self._invented(seen["read"])
        if seen["start"] != start:
            wrong.append(f"the consumer continues at {seen['start']}, not {start}")
        if [row[0] for row in seen["read"]] != list(range(start, self.end)):
            wrong.append(f"{len(seen['read'])} messages came, not {self.end - start}")
        if seen["start_again"] != self.end:
            wrong.append(f"its second life begins at {seen['start_again']}, not {self.end}")
        return wrong

    # --- verify -----------------------------------------------------------------------------------

    def _finds(self, _: str, outcome: Finds, seen: Seen) -> list[str]:
        return self._found(outcome, seen["problems"], "verify")

    def _found(self, outcome: Finds, problems: list[Seen], who: str) -> list[str]:
        wrong = [f"{who} does not find “{outcome.reason}” in {self.hit.file}: {problems[:3]}"]
        for problem in problems:
            if problem["file"] not in self._files() or outcome.reason not in problem["reason"]:
                continue
            misplaced = []
            if outcome.placed and problem["file"] == self.hit.file:
                if self.hit.position not in {None, problem["position"]}:
                    misplaced.append(f"position {problem['position']}, not {self.hit.position}")
                named = problem["sequence"] == self.hit.sequence or self.hit.sequence is None
                if not named and not self.hit.whole:
                    misplaced.append(f"message {problem['sequence']}, not {self.hit.sequence}")
            if not misplaced:
                return []
            wrong = [f"{who} finds “{problem['reason']}” with {' and '.join(misplaced)}"]
        return wrong

    def _finds_nothing(self, _: str, _outcome: FindsNothing, seen: Seen) -> list[str]:
        return [f"verify finds {seen['problems'][:2]}"] if seen["problems"] else []

    # --- repair and salvage -----------------------------------------------------------------------

    def _repaired(self, _: str, outcome: Repairs | Leaves | Idle, seen: Seen) -> list[str]:
        wrong = self._saved("salvage", self.outcome_of("salvage"), seen["salvaged"])
        wrong = [f"after repair: {text}" for text in wrong]
        if isinstance(outcome, Leaves):
            if seen["ok"] or not seen["remaining"]:
                wrong.append(f"repair reports no remaining problem; it did: {seen['reports']}")
            elif not seen["after"]["problems"]:
                wrong.append("repair reports a remaining problem, verify reports none")
            return wrong
        if not seen["ok"] or seen["remaining"]:
            return [*wrong, f"repair leaves {seen['remaining'][:2]}, it did {seen['reports']}"]
        if seen["after"]["problems"]:
            wrong.append(f"after repair verify finds {seen['after']['problems'][:2]}")
        if isinstance(outcome, Repairs) and not seen["reports"]:
            wrong.append("repair does not report what it did")
        if isinstance(outcome, Repairs) and not any(
            outcome.reports in text for text in seen["reports"]
        ):
            wrong.append(f"repair does not report “{outcome.reports}”, but {seen['reports']}")
        if "error" in seen["opened"]:
            return [*wrong, f"after repair, opening fails: {seen['opened']['error']['text']}"]
        opening = self.outcome_of("opening")
        keeps = (
            opening.keeps
            if isinstance(opening, Works)
            else outcome.keeps
            if isinstance(outcome, Repairs)
            else "all"
        )
        return wrong + [
            f"after repair: {text}" for text in self._works("opening", Works(keeps), seen["opened"])
        ]

    def _saved(self, _: str, outcome: OutcomeOf | None, seen: Seen) -> list[str]:
        if not isinstance(outcome, Saves):
            return []
        wrong = []
        if seen["error_in_target"] or seen["problems_in_target"]:
            wrong.append(
                f"the target is not good: {seen['error_in_target']}, "
                f"{seen['problems_in_target'][:2]}"
            )
        rows = self._as_sent(seen)
        wrong += self._invented(rows)
        wrong += self._contradicted(outcome, seen["conflicts"])
        copied = {row[0] for row in rows}
        missing = self.whole - copied
        if not outcome.reads:
            missing -= {place.sequence for place in self.original.of_page(self.hit.page or 0)}
        if missing:
            wrong.append(f"{len(missing)} whole messages were not copied, first {min(missing)}")
        lost = _lost(seen)
        gone = set(range(self.end)) - copied
        if outcome.knows and sorted(lost) != sorted(gone):  # each of them once
            wrong.append(f"lost are {sorted(gone)[:9]}, reported {seen['lost'][:3]}")
        if not outcome.knows and not copied.isdisjoint(lost):
            wrong.append(f"reported as lost though copied: {sorted(copied & set(lost))[:9]}")
        if seen["ok"] is (bool(gone)) and outcome.knows:
            wrong.append(f"ok is {seen['ok']}, though {len(gone)} messages are lost")
        return wrong

    def _contradicted(self, outcome: Saves, conflicts: list[Seen]) -> list[str]:
        """Judge the reported conflicts: the same sequences with other contents."""
        expected = []
        if outcome.contradicts:
            before = (self.hit.page or 0) - 1
            places = [place for place in self.original.of_page(before) if place.payload]
            expected = [(self.hit.file, place.sequence) for place in places]
        found = [(conflict["file"], conflict["sequence"]) for conflict in conflicts]
        if found == expected:
            return []
        return [f"conflicts are {expected[:3]}, reported {conflicts[:3]}"]

    def _as_sent(self, seen: Seen) -> list[list[Any]]:
        """Return what was copied under the sequences that it had."""
        rows = []
        for sequence, timestamp, payload in seen["copied"]:
            for first, last, target_first in seen["runs"]:
                if target_first <= sequence <= target_first + last - first:
                    rows.append([first + sequence - target_first, timestamp, payload])
        return rows


def _lost(seen: Seen) -> list[int]:
    """Return the messages that salvage reports as lost, each as often as it does."""
    known = [run for run in seen["lost"] if None not in run and run[1] - run[0] < 1 << 20]
    return [sequence for first, last in known for sequence in range(first, last + 1)]


def snapshot(directory: Path) -> dict[str, Any]:
    """Return all that can be seen of a directory: names, kinds, modes, times, bytes."""
    found: dict[str, Any] = {}
    try:
        status = directory.lstat()
    except FileNotFoundError:
        return found
    found["."] = status.st_mode, status.st_mtime_ns
    if not stat.S_ISDIR(status.st_mode):
        return found
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        regular = stat.S_ISREG(status.st_mode)
        found[str(path.relative_to(directory))] = (
            status.st_mode,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_nlink,
            path.read_bytes() if regular else None,
        )
    return found
