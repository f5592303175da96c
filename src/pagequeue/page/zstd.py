"""Zstandard, imported where it is used: from the standard library, or from the extra `zstd`.

What is inflated says its own size, and is refused before any memory is taken if that is not the
size that was expected. Nothing here knows of pages.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

from pagequeue import errors
from pagequeue.system.os_errors import raise_typed
from pagequeue.util.optional import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

LEVEL_DEFAULT: Final = 1
LEVEL_MIN: Final = -7
LEVEL_MAX: Final = 19


class BadBlock(ValueError):
    """The bytes are not what was compressed; the text says why."""


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
            said = module.get_frame_parameters(data).content_size
            if said != size_bytes:
                raise BadBlock(_other_size(said, size_bytes))
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
            said = module.get_frame_info(data).decompressed_size
            if said != size_bytes:
                raise BadBlock(_other_size(said, size_bytes))
            inflating = module.ZstdDecompressor()
            result: bytes = inflating.decompress(data, max_length=size_bytes)
        except module.ZstdError as error:
            raise BadBlock(str(error)) from error
        if not inflating.eof or inflating.unused_data:
            raise BadBlock("bytes follow its end, or it has none")
        return result


def _other_size(said: object, size_bytes: int) -> str:
    return f"it says {said} bytes, {size_bytes} must be there"


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
        "compressed pages need Zstandard, which is not installed: pip install 'pagequeue[zstd]'",
        path=path, extra="zstd",
    )  # fmt: skip


def _check_descriptors(path: str | None) -> None:
    """Raise SystemLimit if what kept a module from being loaded is that no descriptor is left."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise_typed(error, path or os.devnull, "loading Zstandard")


def check(path: str | None) -> None:
    """Raise if pages cannot be compressed and inflated here.

    Raises:
        MissingExtra: the extra `zstd` is not installed.
    """
    _module(path)


def deflate(data: Buffer, level: int, path: str) -> bytes:
    """Return the compressed bytes; without the GIL meanwhile.

    Raises:
        MissingExtra: the extra `zstd` is not installed.
    """
    return _module(path).deflate(data, level)


def inflate(data: bytes, size_bytes: int, path: str) -> bytes:
    """Return exactly so many bytes, inflated without the GIL; never takes memory for more.

    Raises:
        BadBlock: the bytes are not what was compressed, or would be more or fewer.
        MissingExtra: the extra `zstd` is not installed.
    """
    result = _module(path).inflate(data, size_bytes)
    if len(result) != size_bytes:
        raise BadBlock(f"{len(result)} bytes came out, {size_bytes} must be there")
    return result
