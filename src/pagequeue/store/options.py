"""The options of `Queue`, checked before anything is opened or made."""

from __future__ import annotations

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.page import zstd
from pagequeue.system.directory import FILE_MODE, FILE_MODE_MAX
from pagequeue.util.arguments import choice, seconds, type_error, value_error, whole

LEASE_SECONDS_MAX = 1e9
RING_PAGES = 4
"""Pages of a ring, where no page size is given: fewer are free too seldom, more are rolled into too
often."""
RING_PAGES_MIN = 4


def check_options(
    path: str, prefix: str, page_bytes: int | None, lock_timeout: float
) -> tuple[int | None, float]:
    """Return page_bytes and lock_timeout; raise InvalidOption for an invalid option."""
    check_prefix(path, prefix)
    if page_bytes is not None:
        remedy = (
            f"give a multiple of {fmt.PAGE_BYTES_STEP} from {fmt.PAGE_BYTES_MIN} to "
            f"{fmt.PAGE_BYTES_MAX}"
        )
        page_bytes = whole(
            "page_bytes",
            page_bytes,
            fmt.PAGE_BYTES_MIN,
            fmt.PAGE_BYTES_MAX,
            path=path,
            remedy=remedy,
        )
        if page_bytes % fmt.PAGE_BYTES_STEP:
            raise value_error("page_bytes", page_bytes, remedy, path=path)
    return page_bytes, seconds("lock_timeout", lock_timeout, path=path, remedy="give 0 or more")


def check_prefix(path: str, prefix: str) -> None:
    """Raise InvalidOption for a prefix that no queue can have, InvalidType for no text."""
    if not isinstance(prefix, str):
        raise type_error("prefix", prefix, "a str")
    if not fmt.is_prefix(prefix):
        raise value_error(
            "prefix",
            prefix,
            "use letters, digits, dot, dash and underscore, at most 100, not beginning with "
            f"dot or dash, and without '{fmt.TEMPORARY}' and '{fmt.CURSOR}'",
            path=path,
        )


def page_bytes_of(ring_bytes: int | None) -> int:
    """Return the page size of a new queue for which none was given."""
    if ring_bytes is None:
        return fmt.PAGE_BYTES_DEFAULT
    step = fmt.PAGE_BYTES_STEP
    count = ring_bytes // RING_PAGES // fmt.files_bytes(step)
    return min(max(count * step, step), fmt.PAGE_BYTES_DEFAULT)


def ring_page_bytes(ring_bytes: int, page_bytes: int) -> int:
    """Return how many of a ring's bytes are for its pages: the others are for their indexes."""
    return ring_bytes // fmt.files_bytes(page_bytes) * page_bytes


def check_ring(path: str, ring: int | None, page_bytes: int | None) -> int | None:
    """Return the size of a ring; raise InvalidOption for an invalid one."""
    if ring is None:
        return None
    least = RING_PAGES_MIN * fmt.files_bytes(page_bytes or fmt.PAGE_BYTES_MIN)
    remedy = f"give {least} bytes or more, below 2**63"
    return whole("ring", ring, least, fmt.SEQUENCE_MAX, path=path, remedy=remedy)


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
    remedy = (
        f"give permission bits to read and write, from {oct(FILE_MODE)} to {oct(FILE_MODE_MAX)}"
    )
    mode = whole("file_mode", mode, 0, FILE_MODE_MAX, path=path, remedy=remedy)
    if mode & FILE_MODE != FILE_MODE:
        raise errors.InvalidOption(f"file_mode is {oct(mode)}", path=path, remedy=remedy)
    return mode


def check_sync_failure(path: str, policy: str) -> None:
    """Raise InvalidOption for an invalid value."""
    choice("on_sync_failure", policy, ("stop", "seal"), path=path)


def check_consumer_name(path: str, name: str, owner: str = "consumer") -> None:
    """Raise InvalidOption for a name that neither can have, InvalidType for no text."""
    if not isinstance(name, str):
        raise type_error(f"name of a {owner}", name, "a str")
    if not fmt.is_consumer_name(name):
        raise value_error(
            f"name of a {owner}",
            name,
            "use letters, digits, dot, dash and underscore, at most 100, not beginning with "
            f"dot, dash or 'tmp', and without '{fmt.TEMPORARY}'",
            path=path,
        )


def check_group(path: str, lease: float, capacity: int | None) -> tuple[float, int | None]:
    """Return the two options; raise InvalidOption for an invalid value."""
    remedy = f"give seconds, above 0 and below {LEASE_SECONDS_MAX:g}"
    span = seconds("lease", lease, path=path, remedy=remedy)
    if not 0 < span < LEASE_SECONDS_MAX:
        raise value_error("lease", lease, remedy, path=path)
    if capacity is not None:
        capacity = whole("capacity", capacity, 1, fmt.GROUP_CAPACITY_MAX, path=path)
    return span, capacity


def check_expired(path: str, policy: str) -> None:
    """Raise InvalidOption for an invalid value."""
    choice("on_expired", policy, ("raise", "skip"), path=path)


def check_full(path: str, policy: str, timeout: float | None) -> float | None:
    """Return the timeout; raise InvalidOption for an invalid value."""
    choice("on_full", policy, ("raise", "block", "drop_oldest"), path=path)
    return None if timeout is None else seconds("full_timeout", timeout, path=path)


def check_snapshots(count: int) -> int:
    """Return how many snapshots a journal keeps; raise InvalidOption for an invalid value."""
    return whole("snapshots", count, 1)


def check_compress(path: str, after: int | None, level: int) -> tuple[int | None, int]:
    """Return both options; raise InvalidOption for an invalid value."""
    if after is not None:
        after = whole("compress_after", after, 0, path=path, remedy="give pages, 0 or more")
    return after, whole("compress_level", level, zstd.LEVEL_MIN, zstd.LEVEL_MAX, path=path)
