"""Bugs of groups that are planted in Python; `patches.py` offers them by name."""

from __future__ import annotations

from pagequeue.group import group
from pagequeue.meta import group_table
from stress.plants.rewrite import rewrite


def living_owners_robbed() -> None:
    """The check of owners takes them all for dead."""
    rewrite(
        group.Group,
        "_release_dead_owners",
        ("owner != self._owner and not self._owner_lock.is_held(owner)", "owner != self._owner"),
    )


def table_of_another_boot_believed() -> None:
    """The table is trusted even if its key is that of another boot."""
    rewrite(group_table, "recover_groups", ("if group.is_trusted", "if True"))


def only_snapshot_overwritten() -> None:
    """The new snapshot takes the place of the last one."""
    rewrite(
        group_table.GroupTable,
        "write_snapshot",
        (
            "fmt.snapshot_at(self.first, ordinal, self.grown)",
            "fmt.snapshot_at(self.first, 0, self.grown)",
        ),
    )


def dead_letter_forgotten() -> None:
    """A spent message is acknowledged without being kept."""
    rewrite(
        group.Group,
        "_move_to_dead_letters",
        ("self._dead.send(sequence, message, deliveries, cause)", "pass"),
    )


def rejected_again() -> None:
    """A rejected message is a dead letter, and is delivered again when its lease ends."""
    rewrite(
        group.Group,
        "_send_to_dead_letters",
        ("return self._settle(slot, claim_id, True)", "return True"),
    )


def rejected_and_gone() -> None:
    """A rejected message is acknowledged without being kept."""
    rewrite(
        group.Group,
        "_send_to_dead_letters",
        ("self._dead.send(sequence, message, deliveries, cause, reason)", "pass"),
    )


def rejected_twice() -> None:
    """A rejected message is two dead letters."""
    rewrite(
        group.Group,
        "_send_to_dead_letters",
        (
            "    return self._settle",
            (
                "    self._dead.send(sequence, message, deliveries, cause, reason)\n"
                "    return self._settle"
            ),
        ),
    )
