"""Results as JSON, one object a line, for programs."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta

import click
import numpy as np

from pagequeue.schema.dtype_json import describe


def print_json(value: object) -> None:
    """Print one line of JSON on stdout, whatever its encoding.

    A name that is not UTF-8 has lone surrogates here, and JSON escapes them: a reader gets back the
    text that `os.fsencode` takes.
    """
    text = json.dumps(value, default=jsonable, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        text = json.dumps(value, default=jsonable)
    click.echo(text)


def jsonable(value: object) -> object:
    """Return a time as ISO 8601, a duration as seconds, for `json.dumps`."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, np.dtype):
        return describe(value)
    return str(value)
