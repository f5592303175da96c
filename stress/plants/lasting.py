"""Bugs of resources kept too long, or reported wrongly: leaks, forks, standard streams, pages."""

from __future__ import annotations

from pagequeue.group import group
from pagequeue.integrity import repair_page, verify
from pagequeue.meta import meta_file
from pagequeue.store import opening, store
from stress.plants.plant import APART, COMBINED, DAMAGE, PIPE, in_c, in_python
from stress.plants.rewrite import rewrite

LASTING = (
    in_python(
        "empty_page_given_up",
        "repair leaves the header of an empty active page as it is",
        "a queue that neither opens nor repairs",
        {DAMAGE: 30.0},
    ),
    in_python(
        "wrong_headers_passed_over",
        "verify takes every wrong header for one that recovery writes",
        "opening refuses what verify calls sound",
        {DAMAGE: 120.0},
    ),
    in_python(
        "cursor_of_any_name",
        "a cursor may be that of another consumer",
        "a consumer that resumes at another one's place",
        {DAMAGE: 30.0},
    ),
    in_c(
        "standard_numbers_taken",
        "a file of the queue gets the number of a closed stream",
        "what is printed lands in a page",
        {PIPE: 20.0},
        {"python/descriptor.c": [("    if (fd <= STANDARD_MAX) {", "    if (0) {")]},
    ),
    in_python(
        "own_clock_believed",
        "leases go by the clock of each container",
        "a lease that is robbed",
        {APART: 20.0},
    ),
    in_python(
        "group_closed_without_state",
        "closing a group writes no snapshot",
        "acknowledgements that another mount does not see",
        {APART: 20.0},
    ),
    in_python(
        "boot_not_asked_for",
        "a process without a boot id writes all the same",
        "a power cut that is not noticed",
        {APART: 20.0},
    ),
    in_c(
        "fork_not_counted",
        "the child of a fork takes its parent's handles for its own",
        "two that write with one lock",
        {COMBINED: 30.0},
        {
            "python/module.c": [
                (
                    "static void forked(void) { pq_fork_count += 1; }",
                    "static void forked(void) {}",
                )
            ]
        },
    ),
)


def empty_page_given_up() -> None:
    """Only a frame proves a header."""
    rewrite(
        repair_page.PageRepair,
        "_empty_from",
        ("    found, written = self.found", "    return None\n    found, written = self.found"),
    )


def wrong_headers_passed_over() -> None:
    """A power cut can leave anything."""
    rewrite(
        verify._Verification,
        "_can_be_torn",
        (
            "written.durable_page == 0:\n        return False",
            "written.durable_page == 0:\n        return True",
        ),
    )


def cursor_of_any_name() -> None:
    """All consumers of a queue have the same checksum."""
    rewrite(meta_file, "identity_checksum", (" + name.encode()", ""))


def group_closed_without_state() -> None:
    """Only a flush does."""
    setattr(group.Group, "_write_state", lambda _group: None)  # noqa: B010 - a method's place


def own_clock_believed() -> None:
    """All clocks are one."""
    vars(store)["clock_offsets"] = lambda: (0, 0)


def boot_not_asked_for() -> None:
    """No boot is a boot as well."""
    vars(opening)["check_boot_id"] = lambda: None
