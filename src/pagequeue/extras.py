"""Libraries that only some need: imported where they are used, and named when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from pagequeue import errors


def library(name: str, extra: str, what: str) -> Any:  # noqa: ANN401 - it need not be installed
    """Return a module.

    Args:
        name: of the module.
        extra: of this package, which brings it.
        what: needs it, in the plural.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise errors.MissingExtra(
            f"{what} need {package}, which is not installed: pip install 'pagequeue[{extra}]'",
            extra=extra,
        ) from error


def pyarrow() -> Any:  # noqa: ANN401 - the same
    """Return pyarrow.

    Raises:
        MissingExtra: it is not installed.
    """
    return library("pyarrow", "arrow", "Arrow's arrays")
