"""Bugs planted in the reading of records that Python parses; each function plants one."""

from __future__ import annotations

from pagequeue.meta import ledger
from stress.plants.plant import RECORD, in_python
from stress.plants.rewrite import rewrite

MISREADING = (
    in_python(
        "record_believed",
        "the checksum of a ledger's entry is not compared",
        "a piece of work that is lost, or sent twice",
        {RECORD: 5.0},
    ),
    in_python(
        "deep_record_ends_bare",
        "a record that is nested deep ends in a bare error",
        "typed errors",
        {RECORD: 10.0},
    ),
)


def record_believed() -> None:
    """What can be parsed is right."""
    rewrite(
        ledger, "read_record", ("if int(data[:8], 16) == _core.crc32c(text[:end]) else None", "")
    )


def deep_record_ends_bare() -> None:
    """No text is that deep."""
    rewrite(ledger, "read_record", ("except (ValueError, RecursionError):", "except ValueError:"))
