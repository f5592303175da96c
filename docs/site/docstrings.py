"""The public docstrings as Griffe reads them: an extension of it, for the pages of the API.

Their sections differ from what Griffe's Google style takes in two points: the examples are headed
`Example:`, and Args and Raises may have a sentence among the entries ("As for `claim`."). Those of
the core are not in its stub, which Griffe reads, but in the compiled module.
"""

from __future__ import annotations

import inspect
import operator
import re
from typing import TYPE_CHECKING, Final

from griffe import Docstring, Extension

from pagequeue import _core

if TYPE_CHECKING:
    from griffe import Object

CORE: Final = f"{_core.__name__}."
SECTION: Final = re.compile(r"^(Args|Raises):\n((?:    .*\n|\n)+)", re.MULTILINE)
ENTRY: Final = re.compile(r"    [\w*.]+(?:, [\w*.]+)*: ")


def readable(text: str) -> str:
    """Return a docstring with the sections that Griffe knows."""

    def divided(found: re.Match[str]) -> str:
        entries, sentences, into = [], [], []
        for line in found[2].splitlines():
            if re.match(r" {4}\S", line):
                into = entries if ENTRY.match(line) else sentences
            into.append(line)
        said = f"{found[1]}: {' '.join(map(str.strip, sentences)).strip()}\n\n"
        section = "\n".join([f"{found[1]}:", *entries, "", ""])
        return (section if entries else "") + (said if sentences else "")

    text = SECTION.sub(divided, f"{text}\n")
    return re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)


class Docstrings(Extension):
    """Changes each docstring before it is parsed."""

    def on_object(self, *, obj: Object, **others: object) -> None:
        """Griffe has read an object."""
        del others
        name = obj.path.removeprefix(CORE)
        if obj.docstring is None and name != obj.path and "_" not in {name[0], obj.name[0]}:
            text = inspect.getdoc(operator.attrgetter(name)(_core))
            if text is not None:
                obj.docstring = Docstring(text, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)
