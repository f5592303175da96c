"""What only runs in a thread, for coroutines: the one place through which all of it goes."""

from __future__ import annotations

import functools
import inspect
import re
from itertools import count
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from pagequeue.wait.shared_jobs import SharedJob

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Owner = TypeVar("Owner")
Given = ParamSpec("Given")
Found = TypeVar("Found")


async def in_thread(do: Callable[[], Found]) -> Found:
    """Call a function in a thread, and let the event loop run meanwhile.

    Raises:
        SystemLimit: there is no thread; it is never called.
    """
    import asyncio  # noqa: PLC0415 - programs without coroutines do not import it

    return await SharedJob(asyncio.get_running_loop(), lambda _: do()).result()


def off_loop(
    method: Callable[Concatenate[Owner, Given], Found],
) -> Callable[Concatenate[Owner, Given], Coroutine[Any, Any, Found]]:
    """Return the coroutine function `NAME_async` that calls a method in a thread.

    If its task is cancelled, all of it happens or nothing.
    """

    @functools.wraps(method)
    async def call(self: Owner, /, *args: Given.args, **options: Given.kwargs) -> Found:
        found: Callable[..., Found] = getattr(self, method.__name__)  # a subclass has its own
        return await in_thread(functools.partial(found, *args, **options))

    for attribute in ("__name__", "__qualname__"):
        setattr(call, attribute, f"{getattr(method, attribute)}_async")
    call.__doc__ = _described(method.__name__, method.__doc__ or "")
    return call


def _described(name: str, text: str) -> str:
    """Return the docstring of a method for its asynchronous form, with its examples."""
    first, _, rest = inspect.cleandoc(text).partition("\n")
    return (
        f"{first}\n\nIn a thread, so that the event loop runs meanwhile. If the task is cancelled, "
        f"all of it\nhappens or nothing.\n{_awaited(name, rest)}"
    )


def _awaited(name: str, text: str) -> str:
    """Return examples with each call of a method awaited."""
    found = re.search(rf"\w+\.{name}\(", text)
    if found is None:
        return text
    end = next(
        i
        for i in count(found.end())
        if text[found.end() : i].count(")") > text[found.end() : i].count("(")
    )
    call = f"await {found[0][:-1]}_async({text[found.end() : end]}"
    is_all = text[end : end + 1] in {"", "\n"} or text[end : end + 2] == " =="
    return text[: found.start()] + (call if is_all else f"({call})") + _awaited(name, text[end:])
