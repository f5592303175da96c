"""Values of queues with a dtype or a codec as JSON, and lines of text as values.

Records, JSON and MessagePack are shown as JSON; pickles and tables as bytes.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Final

import click
import numpy as np

from pagequeue.errors import NotDecodable
from pagequeue.schema.codec import codec_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue import Message, Queue

SHOWN: Final = frozenset({"json", "msgpack"})
FROM_TEXT: Final = frozenset({"utf-8", "json"})


def are_shown(queue: Queue) -> bool:
    """Whether the values of a queue are shown as JSON, not their payloads."""
    return queue.dtype is not None or queue.codec in SHOWN


def jsonable(value: object) -> object:
    """Return a value, or a part of one, in types that JSON has."""
    if isinstance(value, np.void) and value.dtype.names is not None:
        return {name: jsonable(value[name]) for name in value.dtype.names}
    if isinstance(value, np.ndarray):
        return [jsonable(item) for item in value]
    if isinstance(value, np.generic) and value.dtype.kind not in "mM":
        value = value.item()
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, bytes):
        return _text(value)
    return value if isinstance(value, str | int | float | None) else str(value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode("ascii")


def payload_fields(payload: bytes) -> dict[str, str]:
    """Return a payload as a field of JSON: `payload` if it is UTF-8, else `payload_base64`."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode("ascii")}


def value_of(message: Message) -> tuple[bool, object]:
    """Return whether a message has a value, and the value; only its outermost type is JSON's."""
    try:
        value = message.value
    except NotDecodable:
        return False, None
    return True, value if isinstance(value, dict | list) else jsonable(value)


def line_of(message: Message) -> bytes:
    """Return a message as one line: its value as JSON, or its payload if it has none."""
    has_value, value = value_of(message)
    return encoded(value) if has_value else message.payload


def encoded(row: object) -> bytes:
    """Return JSON in UTF-8; lone surrogates, which that cannot hold, are escaped as in JSON."""
    text = json.dumps(row, ensure_ascii=False, default=jsonable)
    return text.encode(errors="backslashreplace")


def check_before_creation(codec: str | None, messages: list[bytes]) -> None:
    """Check messages of the command line in the codec of a queue that may not exist yet.

    Raises:
        click.UsageError: the codec has no text form, or a message is invalid in it.
    """
    if codec is None or codec == "bytes":
        return
    _check_text_form(codec)
    for place, message in enumerate(messages, 1):
        try:
            codec_of(codec).decode(message)
        except ValueError as error:
            raise click.UsageError(
                f"message {place} is invalid in the codec {codec} ({error}); none was sent"
            ) from None


def _check_text_form(codec: str) -> None:
    if codec not in FROM_TEXT:
        raise click.UsageError(f"the queue's codec {codec} has no text form: send with Python")


def decoder_of_lines(queue: Queue) -> Callable[[bytes], object] | None:
    """Return the function that makes an object to send from a line; None: lines are payloads.

    Raises:
        click.UsageError: the queue's codec has no text form.
    """
    name = queue.codec
    if name == "bytes":
        return None
    _check_text_form(name)
    return codec_of(name).decode
