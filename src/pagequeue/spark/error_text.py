"""Errors of this package on their way through Spark, which carries no more of them than text.

PySpark raises classes of its own around what fails in a task or in planning. Their text has a line
with our class and message, and after it one with the attributes; of these two the same error is
made again.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Final

from pagequeue import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

ATTRIBUTES: Final = "pagequeue.attributes: "
OWN: Final = re.compile(
    rf"^pagequeue\.errors\.(\w+): (.+)(?:\n{re.escape(ATTRIBUTES)}(\{{.*\}}))?$", re.MULTILINE
)
OF_OSERROR: Final = ("errno", "strerror", "filename")
SPARKS: Final = {"pyspark", "py4j"}
"""The packages whose exceptions carry ours."""


def attributes_of(error: errors.PageQueueError) -> str:
    """Return the attributes of an error as JSON; those that are not numbers or text are left out.

    Example:
        >>> attributes_of(errors.Expired("gone", path="events", head_sequence=7))
        '{"path": "events", "remedy": null, "head_sequence": 7}'
    """
    state = error.__reduce__()[1][2]
    return json.dumps(
        {name: value for name, value in state.items() if name[0] != "_" and _is_plain(value)}
    )


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int)


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Have errors of this package carry their attributes in a note, which Spark passes on."""
    try:
        yield
    except errors.PageQueueError as error:
        error.add_note(ATTRIBUTES + attributes_of(error))
        raise


def raise_own(error: Exception) -> None:
    """Raise the error of this package that one of Spark's carries, if it does."""
    found = list(OWN.finditer(str(error)))
    if not found:
        return
    name, text, attributes = found[-1].groups()  # those before it are what it was raised from
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.PageQueueError):
        own = kind(text)
        for key, value in _parsed(attributes).items():
            kept = tuple(value) if isinstance(value, list) else value
            if key in OF_OSERROR:
                setattr(own, key, kept)
            else:
                own.__dict__[key] = kept
        raise own from error


def _parsed(attributes: str | None) -> dict[str, object]:
    try:
        found = json.loads(attributes or "{}")
    except ValueError:
        return {}  # a path that is written like this
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def typed_errors() -> Iterator[None]:
    """Raise errors of this package as their own classes where Spark raises one of its own.

    PySpark has no way to register an exception, so what a plain action on a DataFrame raises is
    Spark's class with our text. In this context it is our class, with its attributes; Spark's
    error is its `__cause__`. Other errors pass unchanged. It decorates functions too.

    Raises:
        PageQueueError: the query failed with it, in a task or in planning, whichever reader read.

    Example:
        >>> with typed_errors():
        ...     try:
        ...         rows = read(spark, "events").collect()
        ...     except CorruptFrame as error:
        ...         print(error.path, error.sequence, error.position, error.remedy)
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] in SPARKS:
            raise_own(error)
        raise
