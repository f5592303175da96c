"""The options of `Queue`, checked before anything is opened or made."""

from __future__ import annotations

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.page import zstd
from pagequeue.system.directory import FILE_MODE, FILE_MODE_MAX
from pagequeue.util.numbers import number, whole

LEASE_SECONDS_MAX = 1e9
RING_PAGES = 8
"""Pages of a ring, where no page size is given: fewer are free too seldom, more are rolled into too
often."""
RING_PAGES_MIN = 4


def check_options(
    path: str, prefix: str, page_bytes: int | None, lock_timeout: float
) -> tuple[int | None, float]:
    """Return page_bytes and lock_timeout; raise InvalidOption for an invalid option."""
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a str, not {type(prefix).__name__}")
    if not fmt.is_prefix(prefix):
        raise errors.InvalidOption(
            f"prefix {prefix!r}",
            path=path,
            remedy="use letters, digits, dot, dash and underscore, at most 100, not beginning with "
            f"dot or dash, and without '{fmt.TEMPORARY}' and '{fmt.CURSOR}'",
        )
    page_bytes = None if page_bytes is None else whole("page_bytes", page_bytes)
    if page_bytes is not None and (
        not fmt.PAGE_BYTES_MIN <= page_bytes <= fmt.PAGE_BYTES_MAX
        or page_bytes % fmt.PAGE_BYTES_STEP
    ):
        raise errors.InvalidOption(
            f"page_bytes is {page_bytes}",
            path=path,
            remedy=f"give a multiple of {fmt.PAGE_BYTES_STEP} from {fmt.PAGE_BYTES_MIN} to "
            f"{fmt.PAGE_BYTES_MAX}",
        )
    seconds = number("lock_timeout", lock_timeout)
    if not seconds >= 0:
        raise errors.InvalidOption(
            f"lock_timeout is {lock_timeout}", path=path, remedy="give 0 or more"
        )
    return page_bytes, seconds


def page_bytes_of(ring_bytes: int | None) -> int:
    """Return the page size of a new queue for which none was given."""
    if ring_bytes is None:
        return fmt.PAGE_BYTES_DEFAULT
    step = fmt.PAGE_BYTES_STEP
    return min(max(ring_bytes // RING_PAGES // step * step, step), fmt.PAGE_BYTES_DEFAULT)


def check_ring(path: str, ring: int | None, page_bytes: int | None) -> int | None:
    """Return the size of a ring; raise InvalidOption for an invalid one."""
    if ring is None:
        return None
    is_bool = isinstance(ring, bool)
    ring = whole("ring", ring)
    least = RING_PAGES_MIN * (page_bytes or fmt.PAGE_BYTES_MIN)
    if is_bool or ring < least:
        raise errors.InvalidOption(
            f"ring is {ring}", path=path, remedy=f"give {least} bytes or more"
        )
    return ring


def refuse_beside_ring(path: str, given: dict[str, bool]) -> None:
    """Raise InvalidOption if one of these options was given for a ring, which excludes them."""
    for name, was_given in given.items():
        if was_given:
            raise errors.InvalidOption(
                f"{name} and a ring exclude each other",
                path=path,
                remedy=f"leave {name} out, or use a queue that is no ring",
            )


def check_file_mode(path: str, mode: int) -> int:
    """Return the option; raise InvalidOption for an invalid value."""
    mode = whole("file_mode", mode)
    if mode & ~FILE_MODE_MAX or mode & FILE_MODE != FILE_MODE:
        raise errors.InvalidOption(
            f"file_mode is {oct(mode)}",
            path=path,
            remedy=f"give permission bits to read and write, from {oct(FILE_MODE)} to "
            f"{oct(FILE_MODE_MAX)}",
        )
    return mode


def check_sync_failure(path: str, policy: str) -> None:
    """Raise InvalidOption for an invalid value."""
    if policy not in {"stop", "seal"}:
        raise errors.InvalidOption(
            f"on_sync_failure is {policy!r}", path=path, remedy='give "stop" or "seal"'
        )


def check_consumer_name(path: str, name: str) -> None:
    """Raise InvalidOption for a name that no consumer can have, TypeError for no text."""
    if not isinstance(name, str):
        raise TypeError(f"a consumer's name is a str, not {type(name).__name__}")
    if not fmt.is_consumer_name(name):
        raise errors.InvalidOption(
            f"consumer name {name!r}",
            path=path,
            remedy="use letters, digits, dot, dash and underscore, at most 100, not beginning with "
            f"dot, dash or 'tmp', and without '{fmt.TEMPORARY}'",
        )


def check_group(
    path: str, lease: float, max_deliveries: int | None, capacity: int | None
) -> tuple[float, int | None, int | None]:
    """Return the three options; raise InvalidOption for an invalid value."""
    lease = number("lease", lease)
    max_deliveries = None if max_deliveries is None else whole("max_deliveries", max_deliveries)
    capacity = None if capacity is None else whole("capacity", capacity)
    if not 0 < lease < LEASE_SECONDS_MAX:
        raise errors.InvalidOption(
            f"lease is {lease}",
            path=path,
            remedy=f"give seconds, above 0 and below {LEASE_SECONDS_MAX:g}",
        )
    if max_deliveries is not None and not 0 < max_deliveries < 1 << 32:
        raise errors.InvalidOption(
            f"max_deliveries is {max_deliveries}", path=path, remedy="give 1 or more, or None"
        )
    if capacity is not None and not 0 < capacity <= fmt.GROUP_CAPACITY_MAX:
        raise errors.InvalidOption(
            f"capacity is {capacity}", path=path, remedy=f"give 1 to {fmt.GROUP_CAPACITY_MAX}"
        )
    return lease, max_deliveries, capacity


def check_expired(path: str, policy: str) -> None:
    """Raise InvalidOption for an invalid value."""
    if policy not in {"raise", "skip"}:
        raise errors.InvalidOption(
            f"on_expired is {policy!r}", path=path, remedy='give "raise" or "skip"'
        )


def check_full(path: str, policy: str, timeout: float | None) -> float | None:
    """Return the timeout; raise InvalidOption for an invalid value."""
    seconds = None if timeout is None else number("full_timeout", timeout)
    if policy not in {"raise", "block", "drop_oldest"}:
        raise errors.InvalidOption(
            f"on_full is {policy!r}", path=path, remedy='give "raise", "block" or "drop_oldest"'
        )
    if seconds is not None and not seconds >= 0:
        raise errors.InvalidOption(
            f"full_timeout is {timeout}",
            path=path,
            remedy="give seconds, 0 or more, or None for ever",
        )
    return seconds


def check_snapshots(count: int) -> int:
    """Return how many snapshots a journal keeps; raise InvalidOption for an invalid value."""
    is_bool = isinstance(count, bool)
    count = whole("snapshots", count)
    if is_bool or count < 1:
        raise errors.InvalidOption(f"snapshots is {count}", remedy="give 1 or more")
    return count


def check_compress(path: str, after: int | None, level: int) -> tuple[int | None, int]:
    """Return both options; raise InvalidOption for an invalid value."""
    is_bool = isinstance(after, bool)
    after = None if after is None else whole("compress_after", after)
    level = whole("compress_level", level)
    if after is not None and (is_bool or after < 0):
        raise errors.InvalidOption(
            f"compress_after is {after}", path=path, remedy="give pages, 0 or more"
        )
    if not zstd.LEVEL_MIN <= level <= zstd.LEVEL_MAX:
        raise errors.InvalidOption(
            f"compress_level is {level}",
            path=path,
            remedy=f"give {zstd.LEVEL_MIN} to {zstd.LEVEL_MAX}",
        )
    return after, level
