"""Forbids that bytes of a manifest, a ledger or another record are misread, or end in a bare error.

Records that Python parses are written as their writers do, then changed: bits, lengths, appended
bytes, and values of their JSON with the checksum made right again. Each must be read, or be refused
with a typed error that names the file; where the checksum was not made right, what is read must be
what was written. No read may take long or much memory. A case is one file.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import resource
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stress import driver
from stress.campaign import Budget, Outcome
from stress.rounds import tries

if TYPE_CHECKING:
    from collections.abc import Callable

SHORT_SECONDS = 2.0
CASE_SECONDS_MAX = 2.0
MEMORY_BYTES = 2 << 30
VIOLATIONS_MAX = 8
TURN_CASES = 64
NESTED = 5_000
PREFIX = "queue"
ODD: tuple[object, ...] = (
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**400, 1.5),
    *(
        float("nan"),
        float("inf"),
        "",
        "x",
        "0" * 8,
        "\ud800",
        "../x",
        [],
        {},
        [0, 0, 0],
        [[0, 0, 0]],
    ),
)


@dataclass(frozen=True)
class Target:
    """A kind of record.

    Attributes:
        name: of its file.
        good: the bytes of one.
        read: parses a file of this path.
        sign: makes a file of a JSON text; None: it is no JSON.
        text: returns the JSON of a file.
    """

    name: str
    good: bytes
    read: Callable[[str], Any]
    sign: Callable[[Any], bytes] | None = None
    text: Callable[[bytes], Any] | None = None


def targets(directory: str, rng: random.Random) -> list[Target]:
    """Return one record of each kind, as its writer makes it."""
    from pagequeue import _core  # noqa: PLC0415  the core first
    from pagequeue.meta import commit_record, last_stored, ledger  # noqa: PLC0415  the core first
    from pagequeue.meta.manifest import Manifest  # noqa: PLC0415
    from pagequeue.system.directory import Directory  # noqa: PLC0415

    folder = Directory(directory, create=False)

    def signed(told: Any) -> bytes:  # noqa: ANN401  any JSON
        text = json.dumps(told).encode()
        return f"{_core.crc32c(text):08x}".encode() + text

    def unsigned(data: bytes) -> Any:  # noqa: ANN401  the same
        return json.loads(data[8:])

    def lines(told: Any) -> bytes:  # noqa: ANN401  the same
        body = json.dumps({name: told[name] for name in told if name != "crc32c"})[1:-1].encode()
        return f'{{"crc32c": "{_core.crc32c(body):08x}",\n'.encode() + body + b"}\n"

    first = rng.randrange(1 << 40)
    done = [[number, first + number, first + number + 1] for number in range(rng.randint(1, 16))]
    entry = {"version": ledger.VERSION, "writer": "w", "done": done, ledger.DROPPED: 0}
    beyond = [4, 64, 1, first + 3, first]
    pages = {"entry": "0" * 32, "beyond": beyond, "first_page": 2, "first_sequence": first}
    message = _core.Message(rng.randbytes(rng.randrange(200)), first, first)
    queue_id = rng.randbytes(16)
    published, publishing_name = ledger.published_name(PREFIX, "0" * 32), f"{PREFIX}-publishing"
    found = [
        Target(
            f"{PREFIX}-manifest.json",
            manifest(first, rng).encode(),
            lambda path: Manifest.decode(_bytes(path), path),
            lines,
            json.loads,
        ),
        Target(
            published,
            signed(entry),
            lambda _: ledger.read_record(folder, published),
            signed,
            unsigned,
        ),
        Target(
            publishing_name,
            signed(entry | pages | {"first_checksum": 1}),
            lambda _: commit_record.read_publishing(folder, PREFIX),
            signed,
            unsigned,
        ),
        Target(
            f"{PREFIX}-stored.{first}",
            last_stored.encode(queue_id, message),
            lambda path: _told(last_stored.decode(_bytes(path), queue_id, first, path)),
        ),
    ]
    if importlib.util.find_spec("pyspark") is not None:
        from pagequeue.spark.pipeline import replay_plan  # noqa: PLC0415  the extra

        path = os.path.join(directory, "plan")
        replay_plan.save(
            path,
            replay_plan.Plan(
                "w",
                0,
                first + 9,
                {"q": 7},
                [replay_plan.Cut(0), replay_plan.Cut(first)],
                {"q": "7"},
            ),
        )
        found.append(Target("plan", _bytes(path), replay_plan.load, signed, unsigned))
    return found


def manifest(first: int, rng: random.Random) -> Any:  # noqa: ANN401  the core is chosen later
    """Return a manifest of a few pages."""
    from pagequeue import format as fmt  # noqa: PLC0415
    from pagequeue.meta.manifest import Manifest, ShippedPage  # noqa: PLC0415

    pages = []
    for number in range(1, rng.randint(1, 5)):
        name = fmt.page_name(PREFIX, number)
        at = first + number
        pages.append(
            ShippedPage(number, name, 4096, "0a" * 4, 12, "b0" * 4, at, at + 1, at, at + 1, 128)
        )
    return Manifest("00" * 16, "host", "/there", PREFIX, 4096, tuple(pages))


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _told(message: Any) -> tuple[bytes, int, int]:  # noqa: ANN401  a message of the core
    return message.payload, message.timestamp, message.sequence


# --- changes --------------------------------------------------------------------------------------


def changed(data: bytes, rng: random.Random) -> bytes:
    """Return other bytes, without a right checksum but by chance."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 6))):
        at = rng.randrange(len(found) + 1)
        kind = rng.randrange(5)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del found[at:]
        elif kind == 2:
            found += rng.choice((b"\0" * 7, b" ", b"\n", b"}", rng.randbytes(7)))
        elif kind == 3:
            found[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            del found[at : at + rng.randrange(1, 9)]
    return bytes(found)


def altered(told: Any, rng: random.Random) -> Any:  # noqa: ANN401  any JSON
    """Return JSON with one value replaced, removed, doubled or nested deeply."""
    if rng.random() < 0.25 or not isinstance(told, dict | list) or not told:
        return rng.choice(ODD)
    if isinstance(told, list):
        at = rng.randrange(len(told))
        if rng.random() < 0.2:
            return [*told[:at], *told[at + 1 :]]
        return [*told[:at], altered(told[at], rng), *told[at + 1 :]]
    name = rng.choice(list(told))
    if rng.random() < 0.15:
        return {key: value for key, value in told.items() if key != name}
    if rng.random() < 0.1:
        return told | {"more": 1}
    return told | {name: altered(told[name], rng)}


def nested(target: Target) -> bytes:
    """Return a record that is deep."""
    assert target.sign is not None
    return target.sign({"version": 1, "done": 0}).replace(b"0}", b"[" * NESTED + b"]" * NESTED)


# --- one file -------------------------------------------------------------------------------------


def wrong_with(target: Target, directory: str, rng: random.Random) -> str | None:
    """Change a file and read it; return the violation, if any."""
    path = os.path.join(directory, target.name)
    kind = rng.choice(("bytes", "value", "intact") if target.sign else ("bytes", "intact"))
    data = target.good
    if kind == "bytes":
        data = changed(data, rng)
    elif kind == "value":
        assert target.sign is not None
        assert target.text is not None
        told = altered(target.text(data), rng)
        deep = rng.random() < 0.01 or not isinstance(told, dict)
        data = nested(target) if deep else target.sign(told)
    expected = _read(target, path, target.good)
    started = time.thread_time()  # of the processor: another one's may take it away meanwhile
    found = _read(target, path, data)
    seconds = time.thread_time() - started
    what = f"{target.name}, {kind}, {data[:300]!r}"
    if seconds > CASE_SECONDS_MAX:
        return f"{what}: {seconds:.1f} s"
    if isinstance(expected, str):
        return f"{what}: what its writer wrote is refused: {expected}"
    if isinstance(found, str):
        return f"{what}: {found}" if found else None
    if kind != "value" and found != expected:
        return f"{what}: is read as {found[0]!r}"[:1000]
    return None


def _read(target: Target, path: str, data: bytes) -> str | tuple[Any]:
    """Return what a file is read as, in a tuple; else what is wrong with the error, or empty."""
    from pagequeue import errors  # noqa: PLC0415

    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, 0o600)
    try:
        return (target.read(path),)
    except (errors.CorruptMeta, errors.NewerFormat) as error:
        return "" if error.path == path and path in str(error) else f"names another file: {error}"
    except BaseException as error:  # noqa: BLE001  any exception is a finding
        return f"a bare {type(error).__name__}: {error}"


def campaign(budget: Budget) -> Outcome:
    """Change and read until the budget is used up, in a process with little memory."""
    resource.setrlimit(resource.RLIMIT_AS, (_size_bytes() + MEMORY_BYTES, resource.RLIM_INFINITY))
    rng = random.Random(budget.seed)
    outcome = Outcome(0)
    with tempfile.TemporaryDirectory(dir=driver.scratch_directory()) as directory:
        for _ in tries(budget, outcome, VIOLATIONS_MAX):
            for target in targets(directory, rng):
                for _ in range(TURN_CASES):
                    if outcome.cases == budget.cases:
                        return outcome
                    wrong = wrong_with(target, directory, rng)
                    outcome.cases += 1
                    kinds = outcome.notes.setdefault("records", {})
                    kinds[target.name.split(".")[0]] = kinds.get(target.name.split(".")[0], 0) + 1
                    if wrong is not None:
                        outcome.violations.append(wrong)
    return outcome


def _size_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def run(budget: Budget) -> Outcome:
    """Run the campaign in a separate process."""
    return driver.run_apart(__name__, budget)
