"""The options of `Queue`, checked before anything is opened or made."""

from __future__ import annotations

import operator
from numbers import Real

from pagequeue import errors, zstd
from pagequeue import format as fmt
from pagequeue import format_groups as gfmt
from pagequeue.files import FILE_MODE, FILE_MODE_MAX

LEASE_SECONDS_MAX = 1e9


def whole(name: str, value: object) -> int:
    """Return an option's whole number; raise TypeError, which names the option, for others."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}") from None


def number(name: str, value: object) -> float:
    """Return an option's number; raise TypeError, which names the option, for others."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    return float(value)


def check_options(path: str, prefix: str, page_bytes: int | None, lock_timeout: float) -> None:
    """Raise InvalidOption for an option that cannot be."""
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a str, not {type(prefix).__name__}")
    if (
        not fmt.PREFIX_PATTERN.fullmatch(prefix)
        or fmt.TEMPORARY in prefix
        or fmt.CURSOR in f"{prefix}."
    ):
        raise errors.InvalidOption(
            f"prefix {prefix!r}: use letters, digits, dot, dash and underscore, at most 100, "
            f"not beginning with dot or dash, and without '{fmt.TEMPORARY}' and '{fmt.CURSOR}'",
            path=path,
        )
    if page_bytes is not None and (
        not fmt.PAGE_BYTES_MIN <= whole("page_bytes", page_bytes) <= fmt.PAGE_BYTES_MAX
        or page_bytes % fmt.PAGE_BYTES_STEP
    ):
        raise errors.InvalidOption(
            f"page_bytes is {page_bytes}: give a multiple of {fmt.PAGE_BYTES_STEP} from "
            f"{fmt.PAGE_BYTES_MIN} to {fmt.PAGE_BYTES_MAX}",
            path=path,
        )
    if not number("lock_timeout", lock_timeout) >= 0:
        raise errors.InvalidOption(f"lock_timeout is {lock_timeout}: give 0 or more", path=path)


def check_file_mode(path: str, mode: int) -> None:
    """Raise InvalidOption for an option that cannot be."""
    if whole("file_mode", mode) & ~FILE_MODE_MAX or mode & FILE_MODE != FILE_MODE:
        raise errors.InvalidOption(
            f"file_mode is {oct(mode)}: give permission bits to read and write, from "
            f"{oct(FILE_MODE)} to {oct(FILE_MODE_MAX)}",
            path=path,
        )


def check_sync_failure(path: str, policy: str) -> None:
    """Raise InvalidOption for an option that cannot be."""
    if policy not in {"stop", "seal"}:
        raise errors.InvalidOption(
            f'on_sync_failure is {policy!r}: give "stop" or "seal"', path=path
        )


def check_consumer_name(path: str, name: str) -> None:
    """Raise InvalidOption for a name that no consumer can have, TypeError for no text."""
    if not isinstance(name, str):
        raise TypeError(f"a consumer's name is a str, not {type(name).__name__}")
    if not fmt.is_consumer_name(name):
        raise errors.InvalidOption(
            f"consumer name {name!r}: use letters, digits, dot, dash and underscore, at most 100, "
            f"not beginning with dot, dash or 'tmp', and without '{fmt.TEMPORARY}'",
            path=path,
        )


def check_group(path: str, lease: float, max_deliveries: int | None, capacity: int | None) -> None:
    """Raise InvalidOption for an option that cannot be."""
    if not 0 < number("lease", lease) < LEASE_SECONDS_MAX:
        raise errors.InvalidOption(
            f"lease is {lease}: give seconds, above 0 and below {LEASE_SECONDS_MAX:g}", path=path
        )
    if max_deliveries is not None and not 0 < whole("max_deliveries", max_deliveries) < 1 << 32:
        raise errors.InvalidOption(
            f"max_deliveries is {max_deliveries}: give 1 or more, or None", path=path
        )
    if capacity is not None and not 0 < whole("capacity", capacity) <= gfmt.GROUP_CAPACITY_MAX:
        raise errors.InvalidOption(
            f"capacity is {capacity}: give 1 to {gfmt.GROUP_CAPACITY_MAX}", path=path
        )


def check_expired(path: str, policy: str) -> None:
    """Raise InvalidOption for an option that cannot be."""
    if policy not in {"raise", "skip"}:
        raise errors.InvalidOption(f'on_expired is {policy!r}: give "raise" or "skip"', path=path)


def check_full(path: str, policy: str, timeout: float | None) -> None:
    """Raise InvalidOption for an option that cannot be."""
    if policy not in {"raise", "block", "drop_oldest"}:
        raise errors.InvalidOption(
            f'on_full is {policy!r}: give "raise", "block" or "drop_oldest"', path=path
        )
    if timeout is not None and not number("full_timeout", timeout) >= 0:
        raise errors.InvalidOption(
            f"full_timeout is {timeout}: give seconds, 0 or more, or None for ever", path=path
        )


def check_compress(path: str, after: int | None, level: int) -> tuple[int | None, int]:
    """Return both options; raise InvalidOption for one that cannot be."""
    if after is not None and (isinstance(after, bool) or whole("compress_after", after) < 0):
        raise errors.InvalidOption(f"compress_after is {after}: give pages, 0 or more", path=path)
    if not zstd.LEVEL_MIN <= whole("compress_level", level) <= zstd.LEVEL_MAX:
        raise errors.InvalidOption(
            f"compress_level is {level}: give {zstd.LEVEL_MIN} to {zstd.LEVEL_MAX}", path=path
        )
    return after, level
