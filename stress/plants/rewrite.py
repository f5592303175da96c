"""Planting a bug in Python: a function of the library with one exact text in it replaced.

The rest of the function stays what the library has, under its own file name and line numbers. When
the text is not there exactly once, because the library changed, planting fails loudly.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from typing import Any

from stress.variant import replaced_once


def rewrite(owner: Any, name: str, *pairs: tuple[str, str]) -> None:  # noqa: ANN401  class or module
    """Replace texts in a function or method of a class or module.

    Args:
        owner: the class or module.
        name: of the function in it.
        pairs: texts, dedented as in the function's own block, with what takes their place.

    Raises:
        LookupError: a text is not there, or more than once.
    """
    function = inspect.unwrap(vars(owner)[name])
    source, line = inspect.getsource(function), function.__code__.co_firstlineno
    text = textwrap.dedent(source)
    for old, new in pairs:
        text = replaced_once(text, old, new, f"{function.__module__}.{function.__qualname__}")
    flags = __future__.annotations.compiler_flag
    code = compile("\n" * (line - 1) + text, function.__code__.co_filename, "exec", flags=flags)
    room = vars(sys.modules[function.__module__])
    made: dict[str, Any] = {}
    exec(code, room, made)
    setattr(owner, name, made[name])
