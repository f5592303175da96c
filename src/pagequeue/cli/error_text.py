"""What the library says to a program, said to somebody at a command line.

Errors end with a remedy, and a remedy that is an argument in Python is an option here.
"""

from __future__ import annotations

import re
from typing import Final

PAIRS: Final = (
    (r'trust=\("(\w+)",\)', r"--trust \1"),
    (r"for writing with create=True", "by `pagequeue send`"),
    (r" and read_only=True are enough", " is enough"),
    (r"open it with read_only=True, or ", "read it with other commands, or "),
    (r"leave page_bytes out", "leave --page-bytes out"),
    (r"leave codec out", "leave --codec out"),
    (r"(larger|smaller) page_bytes", r"\1 --page-bytes"),
    (r"queue\.consumers\(\) lists them", "`pagequeue consumers` lists them"),
    (r"choose another name, or force it", "choose another name, or give --force"),
    (r"seek to (\d+)", r"give --sequence \1"),
)
"""Patterns of the library's words, and what stands for them."""


def reworded(text: str) -> str:
    """Return an error's text with the command line's words."""
    for pattern, words in PAIRS:
        text = re.sub(pattern, words, text)
    return text
