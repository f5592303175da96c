"""Bugs of the command line; each function plants one, as in `patches.py`."""

from __future__ import annotations

from pagequeue.system import program
from stress.plants.plant import PIPE, in_python
from stress.plants.rewrite import rewrite

PIPING = (
    in_python(
        "written_is_taken",
        "a message is acknowledged when the pipe has it",
        "I11, lost with the reader",
        {PIPE: 10.0},
    ),
    in_python(
        "acknowledged_before_it_is_written",
        "a message is acknowledged first",
        "I11, lost with either",
        {PIPE: 10.0},
    ),
    in_python(
        "closed_streams_left_closed",
        "descriptors that were closed at the start stay so",
        "a file of a queue is stderr",
        {PIPE: 10.0},
    ),
)


def written_is_taken() -> None:
    """No wait follows a write."""
    from pagequeue.cli import stdout  # noqa: PLC0415 - only this campaign needs the extra

    rewrite(stdout.Outlet, "wait_until_taken", ("while self._left_bytes():", "while False:"))


def acknowledged_before_it_is_written() -> None:
    """The cursor moves, and then the message is written."""
    from pagequeue.cli import receive  # noqa: PLC0415 - only this campaign needs the extra

    ack = "consumer.ack(int(part.sequences[-1]))\n"
    rewrite(
        receive,
        "_deliver",
        (f"        {ack}", ""),
        ("        outlet.write(", f"        {ack}        outlet.write("),
    )


def closed_streams_left_closed() -> None:
    """The next file that is opened gets the number."""
    rewrite(program, "_open_closed", ("    for fd, name in", "    return\n    for fd, name in"))
