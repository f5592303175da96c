"""Zstandard, imported where it is used: from the standard library, or from the extra `zstd`.

Compressed bytes state their inflated size; unless it is the expected one, they are refused before
memory is allocated. The module is independent of pages.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

from pagequeue import errors
from pagequeue.system.os_errors import raise_typed
from pagequeue.util.optional import install_command, load

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

LEVEL_DEFAULT: Final = 1
LEVEL_MIN: Final = -7
LEVEL_MAX: Final = 19


class BadBlock(ValueError):
    """The bytes are damaged; the text gives the reason."""


class _Zstandard(Protocol):
    def deflate(self, data: Buffer, level: int) -> bytes: ...
    def inflate(self, data: bytes, size_bytes: int) -> bytes: ...


class _Packaged:
    """The package `zstandard`; its contexts belong to one thread each."""

    def __init__(self, module: Any) -> None:  # noqa: ANN401 - it need not be installed
        self._module = module
        self._local = threading.local()

    def deflate(self, data: Buffer, level: int) -> bytes:
        local = self._local
        if getattr(local, "level", None) != level:
            local.deflating = self._module.ZstdCompressor(level=level)
            local.level = level
        result: bytes = local.deflating.compress(data)
        return result

    def inflate(self, data: bytes, size_bytes: int) -> bytes:
        module, local = self._module, self._local
        try:
            stated = module.get_frame_parameters(data).content_size
            if stated != size_bytes:
                raise BadBlock(_other_size(stated, size_bytes))
            if not hasattr(local, "inflating"):
                local.inflating = module.ZstdDecompressor()
            result: bytes = local.inflating.decompress(
                data, max_output_size=size_bytes, allow_extra_data=False
            )
        except module.ZstdError as error:
            raise BadBlock(str(error)) from error
        return result


class _BuiltIn:
    """The module of the standard library, from Python 3.14 on."""

    def __init__(self, module: Any) -> None:  # noqa: ANN401 - not in every Python
        self._module = module

    def deflate(self, data: Buffer, level: int) -> bytes:
        result: bytes = self._module.compress(data, level)
        return result

    def inflate(self, data: bytes, size_bytes: int) -> bytes:
        module = self._module
        try:
            stated = module.get_frame_info(data).decompressed_size
            if stated != size_bytes:
                raise BadBlock(_other_size(stated, size_bytes))
            inflating = module.ZstdDecompressor()
            result: bytes = inflating.decompress(data, max_length=size_bytes)
        except module.ZstdError as error:
            raise BadBlock(str(error)) from error
        if not inflating.eof or inflating.unused_data:
            raise BadBlock("it has no end, or bytes follow it")
        return result


def _other_size(stated: object, size_bytes: int) -> str:
    return f"it states {stated} bytes, expected {size_bytes}"


_SOURCES: Final[tuple[tuple[str, Callable[[Any], _Zstandard]], ...]] = (
    *((("compression.zstd", _BuiltIn),) if sys.version_info >= (3, 14) else ()),
    ("zstandard", _Packaged),
)
_known: dict[str, _Zstandard] = {}


def _module(path: str | None) -> _Zstandard:
    for name, kind in _SOURCES:
        if name not in _known:
            try:
                _known[name] = kind(load(name))
            except ImportError:
                _check_descriptors(path)
                continue
            except OSError as error:  # no descriptor is left to read it by
                raise_typed(error, path or name, "loading Zstandard")
        return _known[name]
    raise errors.MissingExtra(
        "compressed pages need Zstandard, which is not installed",
        path=path,
        extra="zstd",
        remedy=install_command("zstd"),
    )


def _check_descriptors(path: str | None) -> None:
    """Raise SystemLimit if a module could not be loaded because no descriptor is left."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise_typed(error, path or os.devnull, "loading Zstandard")


def check(path: str | None) -> None:
    """Raise if Zstandard is missing.

    Raises:
        MissingExtra: the extra `zstd` is not installed.
    """
    _module(path)


def deflate(data: Buffer, level: int, path: str) -> bytes:
    """Return the compressed bytes; releases the GIL.

    Raises:
        MissingExtra: the extra `zstd` is not installed.
    """
    return _module(path).deflate(data, level)


def inflate(data: bytes, size_bytes: int, path: str) -> bytes:
    """Return exactly `size_bytes` inflated bytes; releases the GIL, never allocates more.

    Raises:
        BadBlock: the bytes are damaged, or inflate to another size.
        MissingExtra: the extra `zstd` is not installed.
    """
    result = _module(path).inflate(data, size_bytes)
    if len(result) != size_bytes:
        raise BadBlock(f"inflated to {len(result)} bytes, expected {size_bytes}")
    return result
