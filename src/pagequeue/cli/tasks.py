"""`pagequeue tasks`: list, insert, claim, finish and retry the tasks of a store."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from pagequeue.cli import options
from pagequeue.cli.error_text import message_of
from pagequeue.cli.json_output import print_json
from pagequeue.cli.lazy import InOrder
from pagequeue.cli.send import source
from pagequeue.cli.tables import print_table, shortened
from pagequeue.cli.values import encoded, jsonable
from pagequeue.errors import CodecMismatch, InvalidOption
from pagequeue.schema.codec import codec_of
from pagequeue.tasks import NewTask, TaskStore
from pagequeue.tasks.store import CODECS
from pagequeue.tasks.task import STATUSES
from pagequeue.util.text import plural
from pagequeue.util.time_text import parse_duration, parse_time
from pagequeue.util.timestamps import iso_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pagequeue.tasks import Task, TaskStats
    from pagequeue.util.literals import Trust
    from pagequeue.util.timestamps import TimeLike

_REF: Final = re.compile(r"(\d{1,18})(?::(\d{1,18}))?", re.ASCII)
COLUMNS: Final = ("task", "queue", "status", "since / until", "deliveries", "value", "reason")
QUEUE_COLUMNS: Final = ("queue", "ready", "waiting", "claimed", "dead", "oldest ready")


@click.group(cls=InOrder)
def command() -> None:
    """Tasks that processes share: list, insert, claim, finish and retry them.

    DIR is the directory of a task store (`pagequeue.tasks.TaskStore`). A task is named by its
    number and its version, as 17:3. Needs the extra `codecs`.

    \b
    pagequeue tasks insert albums resize '{"image": "1.png"}'
    pagequeue tasks claim albums resize
    pagequeue tasks ls albums --queues
    """  # noqa: D301 - click's own mark is the character


def _ref(text: str) -> tuple[int, int | None]:
    match = _REF.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a task; write its number and version, as 17:3")
    return int(match[1]), None if match[2] is None else int(match[2])


def _refs(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> list[tuple[int, int | None]]:
    try:
        return [_ref(text) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error), context, option) from None


def _later(text: str) -> TimeLike:
    """Return the time that a text means; a duration is from now on."""
    try:
        return timedelta(microseconds=-(-parse_duration(text) // 1000))
    except ValueError:
        return parse_time(text, time.time_ns())


def _opened(directory: str, prefix: str, trust: tuple[Trust, ...], **given: Any) -> TaskStore:  # noqa: ANN401
    given = {"create": False, **given}
    try:
        return TaskStore(directory, prefix=prefix, trust=trust, **given)
    except CodecMismatch:
        raise
    except InvalidOption as error:
        raise click.UsageError(message_of(error)) from None


def _shown(task: Task) -> object:
    value = task.value
    return value if isinstance(value, dict | list) else jsonable(value)


def _figures(task: Task, now: int) -> dict[str, object]:
    return {
        "id": task.id,
        "version": task.version,
        "queue": task.queue,
        "status": task.status(now),
        "at": task.at,
        "priority": task.priority,
        "deliveries": task.deliveries,
        "worker": task.worker,
        "reason": task.reason,
        "created": task.created,
        "key": task.key,
        "value": _shown(task),
    }


def _print_tasks(tasks: Iterable[Task], now: int, *, as_json: bool) -> None:
    if as_json:
        for task in tasks:
            print_json(_figures(task, now))
        return
    for task in tasks:
        value = encoded(_shown(task)).decode()
        click.echo(f"{task.id}:{task.version}  {task.queue}  {value}")


# --- ls -------------------------------------------------------------------------------------------


def _task_row(task: Task, now: int) -> list[str]:
    status = task.status(now)
    value = shortened(encoded(_shown(task)).decode())
    return [
        f"{task.id}:{task.version}",
        task.queue,
        f"{status} by {task.worker}" if status == "claimed" else status,
        iso_time(task.at)[:19] + "Z",
        str(task.deliveries),
        value,
        task.reason or "",
    ]


def _print_queues(stats: TaskStats, *, as_json: bool) -> None:
    if as_json:
        print_json(dataclasses.asdict(stats))
        return
    rows = [
        [
            name,
            *(f"{getattr(one, status):,}" for status in STATUSES),
            "" if one.oldest_ready is None else iso_time(one.oldest_ready)[:19] + "Z",
        ]
        for name, one in stats.queues.items()
    ]
    print_table(QUEUE_COLUMNS, rows, right=frozenset(STATUSES))
    done = ", ".join(f"{count:,} {name}" for name, count in stats.totals.items())
    click.echo(f"{stats.tasks:,} {plural(stats.tasks, 'task')}; so far {done}")


@command.command()
@options.directory_argument
@options.json_option("Print one JSON object per line.")
@click.option("--queue", metavar="NAME", help="Only the tasks of this task queue.")
@click.option("--status", type=click.Choice(STATUSES), help="Only the tasks of this status.")
@click.option("--queues", "by_queue", is_flag=True, help="Print figures of each task queue.")
@click.option(
    "--at",
    "moment",
    metavar="TIME",
    callback=options.parsed(options.parse_timestamp),
    help="As they were at this time: 10m (ago), 2026-01-31T08:00Z, or nanoseconds since 1970.",
)
@options.prefix_option
@options.trust_option
def ls(
    directory: str,
    prefix: str,
    trust: tuple[Trust, ...],
    *,
    as_json: bool,
    queue: str | None,
    status: Any,  # noqa: ANN401 - one of STATUSES
    by_queue: bool,
    moment: int | None,
) -> None:
    """List the tasks of the store in DIR, oldest first.

    \b
    pagequeue tasks ls albums --status dead
    pagequeue tasks ls albums --queues
    """  # noqa: D301 - click's own mark is the character
    if by_queue and (queue, status, moment) != (None, None, None):
        raise click.UsageError("--queues takes none of --queue, --status and --at; omit them")
    with _opened(directory, prefix, trust, read_only=True) as store:
        if by_queue:
            _print_queues(store.stats(), as_json=as_json)
            return
        tasks = store.tasks(queue, status=status, moment=moment)
    now = time.time_ns() if moment is None else moment
    if as_json:
        _print_tasks(tasks, now, as_json=True)
    else:
        rows = [_task_row(task, now) for task in tasks]
        print_table(COLUMNS, rows, right=frozenset({"deliveries"}))


# --- insert ---------------------------------------------------------------------------------------


def _values(store: TaskStore, texts: Iterable[bytes]) -> list[Any]:
    """Return the values that texts mean in the store's codec."""
    decode = codec_of("json" if store.codec == "msgpack" else store.codec).decode
    values = []
    for text in texts:
        try:
            values.append(decode(text))
        except ValueError as error:
            raise options.CommandError(
                f"{text.decode(errors='replace')!r} is not a value of codec {store.codec} "
                f"({error}): write JSON, a text as '\"text\"'"
            ) from None
    return values


@command.command()
@options.directory_argument
@click.argument("queue")
@click.argument("values", nargs=-1, metavar="[VALUE]...")
@options.json_option("Print one JSON object per task.")
@click.option("--file", metavar="FILE", help="One value per line; - is stdin.")
@click.option(
    "--at",
    metavar="TIME",
    callback=options.parsed(_later),
    help="Claim them from then on: 10m (from now), 2026-01-31T08:00Z, or nanoseconds since 1970.",
)
@click.option("--priority", type=int, default=0, show_default=True, help="Higher ones come first.")
@click.option("--key", help="Refuse the task while one with this key is in the store.")
@click.option("--codec", type=click.Choice(CODECS), help="Of a new store; json by default.")
@options.prefix_option
@options.trust_option
def insert(
    directory: str,
    queue: str,
    values: tuple[str, ...],
    prefix: str,
    trust: tuple[Trust, ...],
    *,
    as_json: bool,
    file: str | None,
    at: TimeLike | None,
    priority: int,
    key: str | None,
    codec: str | None,
) -> None:
    """Insert a task for each VALUE, all at once, into the task queue QUEUE of the store in DIR.

    A VALUE is JSON. Prints the new tasks.

    \b
    pagequeue tasks insert albums resize '{"image": "1.png"}'
    pagequeue tasks insert albums resize --file values.jsonl
    """  # noqa: D301 - click's own mark is the character
    texts = list(map(os.fsencode, values))
    if file is not None:
        with source(file) as descriptor, open(descriptor, "rb", closefd=False) as lines:
            texts += [line.rstrip(b"\n") for line in lines]
    if not texts:
        raise click.UsageError("there is no value; give some, or --file")
    if key is not None and len(texts) > 1:
        raise click.UsageError("--key is for one task; give one value")
    with _opened(directory, prefix, trust, create=True, codec=codec) as store:
        new = [NewTask(queue, value, at, priority, key) for value in _values(store, texts)]
        inserted = store.modify(insert=new).inserted
    _print_tasks(inserted, time.time_ns(), as_json=as_json)


# --- claim, done, retry ---------------------------------------------------------------------------


@command.command()
@options.directory_argument
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@options.json_option("Print one JSON object per task.")
@click.option(
    "--lease",
    type=float,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    callback=options.finite,
    help="Until another worker may claim them.",
)
@click.option(
    "--timeout",
    type=float,
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    callback=options.finite,
    help="Wait so long for the first one.",
)
@click.option("--count", type=click.IntRange(1, 1 << 16), default=1, help="Most tasks to claim.")
@click.option("--worker", metavar="NAME", help="Who claims them, for `ls`.")
@options.prefix_option
@options.trust_option
def claim(
    directory: str,
    queues: tuple[str, ...],
    prefix: str,
    trust: tuple[Trust, ...],
    *,
    as_json: bool,
    lease: float,
    timeout: float,
    count: int,
    worker: str | None,
) -> None:
    """Claim the next task of the task queues QUEUE of the store in DIR, and print it.

    It stays claimed until `pagequeue tasks done`, or until its lease ends.

    \b
    pagequeue tasks claim albums resize --lease 60
    pagequeue tasks claim albums resize publish --count 10 --json
    """  # noqa: D301 - click's own mark is the character
    options.check_output()
    if lease <= 0 or timeout < 0:
        raise click.UsageError("--lease is above 0 and --timeout 0 or more; give other seconds")
    with _opened(directory, prefix, trust, worker=worker) as store:
        claims = store.claim_many(queues, count, lease, timeout)
        _print_tasks([one.task for one in claims], time.time_ns(), as_json=as_json)
        sys.stdout.flush()
        for one in claims:  # printed: else the store gives them back
            one.detach()


@command.command()
@options.directory_argument
@click.argument("tasks", nargs=-1, required=True, metavar="ID:VERSION...", callback=_refs)
@options.json_option()
@options.prefix_option
@options.trust_option
def done(
    directory: str,
    tasks: list[tuple[int, int | None]],
    prefix: str,
    trust: tuple[Trust, ...],
    *,
    as_json: bool,
) -> None:
    """Finish claimed tasks of the store in DIR: all of them, or none if one has another version.

    \b
    pagequeue tasks done albums 17:3 18:1
    """  # noqa: D301 - click's own mark is the character
    refs = [(number, version) for number, version in tasks if version is not None]
    if len(refs) < len(tasks):
        raise click.UsageError("a task is finished by number and version; write it as 17:3")
    with _opened(directory, prefix, trust) as store:
        store.finish(refs)
    if as_json:
        print_json({"done": [number for number, _ in refs]})
    else:
        options.note(f"finished {len(refs)} {plural(len(refs), 'task')}")


@command.command()
@options.directory_argument
@click.argument("tasks", nargs=-1, metavar="[ID[:VERSION]]...", callback=_refs)
@options.json_option("Print one JSON object per task.")
@click.option("--dead", is_flag=True, help="All dead tasks.")
@click.option("--queue", metavar="NAME", help="With --dead: only those of this task queue.")
@options.prefix_option
@options.trust_option
def retry(
    directory: str,
    tasks: list[tuple[int, int | None]],
    prefix: str,
    trust: tuple[Trust, ...],
    *,
    as_json: bool,
    dead: bool,
    queue: str | None,
) -> None:
    """Let tasks of the store in DIR be claimed now, whether they are dead, delayed or claimed.

    A worker that has one claimed cannot finish it any more. Deliveries are counted from 0.

    \b
    pagequeue tasks retry albums 17
    pagequeue tasks retry albums --dead --queue resize
    """  # noqa: D301 - click's own mark is the character
    if dead == bool(tasks) or (queue is not None and not dead):
        raise click.UsageError("give either tasks, or --dead, perhaps with --queue")
    with _opened(directory, prefix, trust) as store:
        chosen = store.tasks(queue, status="dead") if dead else _found(store, tasks)
        change = {task.ref: {"at": timedelta(0)} for task in chosen}
        changed = store.modify(change=change).changed
    _print_tasks(changed, time.time_ns(), as_json=as_json)


def _found(store: TaskStore, named: list[tuple[int, int | None]]) -> list[Task]:
    found = []
    for number, version in named:
        task = store.get(number)
        if task is None:
            raise options.CommandError(
                f"{store.directory}: task {number} is not in the store; see `pagequeue tasks ls`"
            )
        found.append(task if version is None else task._replace(version=version))
    return found
