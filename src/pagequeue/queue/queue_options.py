"""QueueOptions: the options of `Queue`, as keyword arguments that are passed on."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from pagequeue.maintenance.retention import Retention
    from pagequeue.store.flush import Sync
    from pagequeue.util.literals import OnFull, OnSyncFailure, Trusted
    from pagequeue.util.timestamps import Clock


class QueueOptions(TypedDict, total=False):
    """The options of `Queue`, without `codec` and `dtype`, which decide what it holds."""

    prefix: str
    create: bool
    read_only: bool
    page_bytes: int | None
    sync: Sync
    on_sync_failure: OnSyncFailure
    lock_timeout: float
    clock: Clock | None
    file_mode: int
    trust: Trusted
    retention: Retention | None
    on_full: OnFull | None
    full_timeout: float | None
    compress_after: int | None
    compress_level: int
    ring: int | None
