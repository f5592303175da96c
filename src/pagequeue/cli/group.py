"""`pagequeue group`: the groups of a queue, their messages, and their dead letters.

`claim` acknowledges a message when the reader of stdout has it (stdout.py), or when the command
that it was given to has ended with 0. All other messages return to the group when it ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from pagequeue import DeadLetter, LeaseLost, NothingReceived
from pagequeue.cli import options, values
from pagequeue.cli.job_runner import JobRunner
from pagequeue.cli.json_output import print_json
from pagequeue.cli.lazy import InOrder
from pagequeue.cli.receive import POLL_SECONDS, printable
from pagequeue.cli.stdout import Outlet
from pagequeue.cli.tables import print_table, shortened
from pagequeue.util.retry import DELIVERIES_MAX
from pagequeue.util.text import grouped, without_controls
from pagequeue.util.timestamps import iso_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pagequeue import Claim, ConsumerInfo, Group, Queue
    from pagequeue.util.literals import Trust

COLUMNS: Final = ("group", "lag", "claimed", "waiting", "dead letters", "last ack", "state")
DEAD_COLUMNS: Final = ("message", "deliveries", "moved", "reason", "payload")
EXIT_COMMAND_FAILED: Final = 1
SIGNALLED: Final = 128
"""And the number of a signal: the exit code of a process that ended because of it."""


@click.group(cls=InOrder)
def command() -> None:
    """Work groups: list them, claim messages, see and requeue dead letters.

    Each message of a queue is claimed by one worker of a group, and is redelivered until it is
    acknowledged.

    \b
    pagequeue group claim jobs mailers --count 10
    pagequeue group ls jobs
    pagequeue group dead jobs mailers
    """  # noqa: D301 - click's own mark is the character


def _groups(queue: Queue) -> list[ConsumerInfo]:
    return [info for info in queue.consumers() if info.group is not None]


def _check_exists(queue: Queue, name: str) -> None:
    """Raise an error if there is no group of this name: opening it would create one."""
    if all(info.name != name for info in _groups(queue)):
        raise options.CommandError(
            f"{queue.directory}: there is no group {name!r}: `pagequeue group ls` lists them"
        )


# --- ls -------------------------------------------------------------------------------------------


def _row(info: ConsumerInfo) -> list[str]:
    assert info.group is not None
    assert info.lag is not None
    counts = (info.lag, info.group.claimed, info.group.waiting, info.group.dead_letters)
    return [
        info.name,
        *(f"{count:,}" for count in counts),
        "never" if info.last_ack is None else info.last_ack.isoformat(timespec="seconds"),
        "open" if info.is_open else "not open",
    ]


@command.command()
@options.directory_argument
@options.json_option("Print one JSON object per line.")
@options.prefix_option
@options.trust_option
def ls(directory: str, prefix: str, trust: tuple[Trust, ...], *, as_json: bool) -> None:
    """List the groups of the queue in DIR.

    The lag counts all messages that are not acknowledged; claimed ones have a worker, waiting ones
    are redelivered.

    \b
    pagequeue group ls jobs
    """  # noqa: D301 - click's own mark is the character
    with options.open_to_read(directory, prefix, trust) as queue:
        found = _groups(queue)
    if as_json:
        for info in found:
            print_json(dataclasses.asdict(info))
    elif found:
        right = frozenset({"lag", "claimed", "waiting", "dead letters"})
        print_table(COLUMNS, list(map(_row, found)), right=right)
    else:
        options.note("no group; `pagequeue group claim DIR NAME` creates one")


# --- claim ----------------------------------------------------------------------------------------


def _claims(
    group: Group,
    count: int | None,
    outlet: Outlet,
    runner: JobRunner | None = None,
    *,
    follow: bool,
) -> Iterator[Claim]:
    """Yield claims, one at a time, until there are none, or `count`, or a signal came."""
    left = sys.maxsize if count is None else count
    while left > 0 and (runner is None or runner.stopped_by is None):
        try:
            claim = group.claim(timeout=POLL_SECONDS if follow else 0)
        except NothingReceived:
            if not follow:
                return
            if outlet.is_abandoned():
                raise BrokenPipeError from None
            continue
        left -= 1
        yield claim


def _line(claim: Claim, queue: Queue, *, as_json: bool) -> bytes:
    message = claim.message
    contents = values.line_of(message) if values.are_shown(queue) else message.payload
    if as_json:
        row: dict[str, Any] = {
            "sequence": message.sequence,
            "timestamp": message.timestamp,
            "time": iso_time(message.timestamp),
            "deliveries": claim.deliveries,
        }
        has_value, value = values.value_of(message) if values.are_shown(queue) else (False, None)
        if has_value:
            row["value"] = value
        else:
            row |= values.payload_fields(message.payload)
        return values.encoded(row) + b"\n"
    if sys.stdout.isatty():
        return printable(contents).encode(errors="backslashreplace") + b"\n"
    return contents + b"\n"


def _work(
    claims: Iterator[Claim],
    runner: JobRunner,
    name: str,
    delay: float | None,
    *,
    at_once: bool,
) -> tuple[int, int]:
    """Run a command for each claim; acknowledge those that it ends with 0 for.

    Args:
        claims: of one group.
        runner: of the command.
        name: of the command.
        delay: seconds after which a message that it failed for is redelivered; None: by the rule
            of the group.
        at_once: whether that can be to this run; else it gets each message once.

    Returns:
        how many messages were claimed, and for how many of them it failed.
    """
    done, failed = 0, 0
    kept: dict[int, tuple[Claim, str]] = {}  # and why the command failed
    for claimed in claims:
        sequence = claimed.message.sequence
        if sequence in kept:  # its lease ended meanwhile
            kept[sequence] = claimed, kept[sequence][1]
            continue
        done += 1
        code = runner.run(claimed)
        is_lost = code is None
        try:
            if code == 0:
                claimed.ack()
                continue
        except LeaseLost:
            is_lost = True
        failed += 1
        if is_lost:
            options.note(f"message {sequence}: its lease ended before {name} did")
            continue
        reason = f"{name} ended with {code}"
        options.note(
            f"message {sequence}: {reason}, {grouped(claimed.deliveries, 'delivery')} so far"
        )
        kept[sequence] = claimed, reason
        if at_once:
            _give_back([kept.pop(sequence)], delay)
    _give_back(kept.values(), delay)
    return done, failed


def _give_back(kept: Iterable[tuple[Claim, str]], delay: float | None) -> None:
    for claimed, reason in kept:
        with contextlib.suppress(LeaseLost):  # then it is redelivered already
            claimed.nack(delay=delay, reason=reason)


@command.command()
@options.directory_argument
@click.argument("name")
@click.argument("words", metavar="[-- COMMAND...]", nargs=-1)
@click.option("-f", "--follow", is_flag=True, help="Wait for more messages, until interrupted.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@click.option(
    "--lease",
    type=click.FloatRange(min=0, min_open=True),
    callback=options.finite,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long another worker waits if this one hangs; extended while COMMAND runs.",
)
@click.option(
    "--max-deliveries",
    type=click.IntRange(min=0),
    default=DELIVERIES_MAX,
    show_default=True,
    metavar="N",
    help="Move a message to the dead letters after N failed deliveries; 0: never.",
)
@click.option(
    "--retry-after",
    type=click.FloatRange(min=0),
    callback=options.finite,
    metavar="SECONDS",
    help="Redeliver so much later when COMMAND fails. Default: 0.1, and twice as long each time.",
)
@options.json_option("Print one JSON object per line.")
@options.prefix_option
@options.trust_option
def claim(
    directory: str,
    name: str,
    words: tuple[str, ...],
    count: int | None,
    lease: float,
    max_deliveries: int,
    retry_after: float | None,
    prefix: str,
    trust: tuple[Trust, ...],
    *,
    follow: bool,
    as_json: bool,
) -> int:
    """Claim messages of the queue in DIR for the group NAME, which is created if necessary.

    Each is printed, and acknowledged when the reader of stdout has it. With COMMAND, which gets the
    payload on stdin, it is acknowledged when that ends with 0. Otherwise it is redelivered, without
    --follow to a later run; the exit code is then 1. A signal that ends this is sent to COMMAND,
    and waits for it.

    \b
    pagequeue group claim jobs mailers --count 10
    pagequeue group claim jobs mailers --follow --max-deliveries 5 -- sendmail -t
    """  # noqa: D301 - click's own mark is the character
    if as_json and words:
        raise click.UsageError("--json prints messages, and COMMAND gets them; give one of them")
    if not words:
        options.check_output()
    outlet, done, failed = Outlet(), 0, 0
    with (
        options.open_to_write(directory, prefix, trust, create=False) as queue,
        queue.group(name, lease=lease, max_deliveries=max_deliveries or None) as group,
    ):
        if words:
            with JobRunner(words, lease) as runner:
                claims = _claims(group, count, outlet, runner, follow=follow)
                done, failed = _work(claims, runner, words[0], retry_after, at_once=follow)
            if runner.stopped_by is not None:
                return SIGNALLED + runner.stopped_by
        else:
            for claimed in _claims(group, count, outlet, follow=follow):
                done += 1
                outlet.write(_line(claimed, queue, as_json=as_json))
                outlet.wait_until_taken()
                claimed.ack()
    if done == 0 and sys.stderr.isatty():
        options.note("no message to claim; --follow waits for one")
    return EXIT_COMMAND_FAILED if failed else 0


# --- dead letters ---------------------------------------------------------------------------------


def _dead_row(letter: DeadLetter) -> list[str]:
    text = "" if letter.payload is None else shortened(printable(letter.payload))
    reason = shortened(without_controls(letter.reason))
    moved = letter.moved_at.isoformat(timespec="seconds")
    return [f"{letter.sequence:,}", f"{letter.deliveries:,}", moved, reason, text]


def _dead_figures(letter: DeadLetter) -> dict[str, object]:
    figures: dict[str, object] = {
        "sequence": letter.sequence,
        "timestamp": letter.timestamp,
        "deliveries": letter.deliveries,
        "reason": letter.reason,
        "moved_at": letter.moved_at.isoformat(),
    }
    return figures | ({} if letter.payload is None else values.payload_fields(letter.payload))


@command.command()
@options.directory_argument
@click.argument("name")
@click.option("--purge", is_flag=True, help="Discard them all instead of printing them.")
@options.json_option("Print one JSON object per line.")
@options.prefix_option
@options.trust_option
def dead(
    directory: str, name: str, prefix: str, trust: tuple[Trust, ...], *, purge: bool, as_json: bool
) -> None:
    """Print the dead letters of the group NAME: what was delivered too often, and why.

    \b
    pagequeue group dead jobs mailers
    pagequeue group dead jobs mailers --purge
    """  # noqa: D301 - click's own mark is the character
    with options.open_to_write(directory, prefix, trust, create=False) as queue:
        _check_exists(queue, name)
        with queue.group(name) as group:
            if purge:
                purged = group.purge_dead_letters()
                click.echo(f"{grouped(purged, 'dead letter')} discarded")
                return
            if as_json:
                for letter in group.dead_letters():
                    print_json(_dead_figures(letter))
                return
            rows = list(map(_dead_row, group.dead_letters()))
    if rows:
        print_table(DEAD_COLUMNS, rows, right=frozenset({"message", "deliveries"}))
    else:
        options.note(f"group {name} has no dead letter")


@command.command()
@options.directory_argument
@click.argument("name")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="At most the oldest N.")
@options.json_option()
@options.prefix_option
@options.trust_option
def requeue(
    directory: str,
    name: str,
    count: int | None,
    prefix: str,
    trust: tuple[Trust, ...],
    *,
    as_json: bool,
) -> None:
    """Send the dead letters of the group NAME to the queue in DIR again, as new messages.

    Every consumer and group of the queue gets them. They are dead letters no more.

    \b
    pagequeue group requeue jobs mailers
    pagequeue group requeue jobs mailers --count 1
    """  # noqa: D301 - click's own mark is the character
    with options.open_to_write(directory, prefix, trust, create=False) as queue:
        _check_exists(queue, name)
        with queue.group(name) as group:
            sent = group.requeue_dead_letters(count)
    if as_json:
        print_json({"requeued": sent})
    else:
        click.echo(f"{grouped(sent, 'message')} requeued")
