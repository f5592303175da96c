"""The values of options that are one of a few names, or have a form of their own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

Backoff = tuple[float, float] | None
"""Seconds that a message waits after its first failed delivery, and at most; None: none."""
CodecName = Literal["bytes", "utf-8", "json", "msgpack", "arrow", "pickle"]
"""What encodes objects as payloads."""
CommitMode = Literal["auto", "manual"]
"""Who acknowledges the elements of a flow."""
OnExpired = Literal["raise", "skip"]
"""What a reader does that falls behind retention."""
OnFull = Literal["raise", "block", "drop_oldest"]
"""What a sender does when `max_bytes` is reached."""
OnSyncFailure = Literal["stop", "seal"]
"""What a process does when a sync fails."""
SyncName = Literal["none", "always"]
"""How durable messages are, where neither a count nor a time says it."""
Trust = Literal["other_owner", "world_writable", "network_file_system"]
"""A risk that is accepted."""
Trusted = Collection[Trust] | tuple[Trust, ...]
"""Risks that are accepted; named twice, because mypy takes a tuple for the second only."""
