"""Bugs of messages larger than a page; each function plants one, as in `patches.py`."""

from __future__ import annotations

from pagequeue.bulk import filled_pages, publisher, staged_fragments, staged_pages
from pagequeue.maintenance import trim_plan
from pagequeue.page import large_message
from stress.plants.plant import (
    CANCEL,
    CUT,
    DAMAGE,
    KILL,
    RETAIN,
    SIM,
    STEP,
    in_c,
    in_python,
    switched,
)
from stress.plants.rewrite import rewrite

LARGE = (
    in_python(
        "visible_before_its_last_fragment",
        "fragments get their names after the mark that leads to them",
        "I23, a message without its end",
        {KILL: 20.0, STEP: 40.0},
    ),
    in_python(
        "wrong_fragment_joined",
        "neither the ordinal nor the offset of a fragment is compared",
        "I23, bytes in another order than sent",
        {DAMAGE: 30.0},
    ),
    in_python(
        "half_a_message_kept",
        "retention takes pages in which no message begins for empty ones",
        "I23, a message without some of its fragments",
        {RETAIN: 60.0},
    ),
    in_python(
        "staged_pages_not_synced",
        "a fragment's page is not synced before the mark that leads to it",
        "I19, a power cut leaves some messages of a batch",
        {SIM: 60.0},
    ),
    switched(
        "fragment_unchecked",
        "the checksum of a fragment's block is not compared",
        "I23, bytes that were not sent",
        {DAMAGE: 30.0},
    ),
    in_c(
        "fragments_not_recovered",
        "recovery after a power cut checks no fragments of a message",
        "I23, a message without all of its bytes",
        {SIM: 180.0},
        {
            "protocol/judge.c": [
                ("if (sum != ~pq_crc_update(", "if (sum == 0 && sum != ~pq_crc_update("),
            ],
        },
    ),
    in_c(
        "commit_not_recovered",
        "recovery after a power cut checks each page of a commit by itself",
        "I19, some messages of a batch",
        {SIM: 60.0},
        {
            "protocol/judge.c": [
                ("int continues = of.continues && !verdict->is_header_lost;", "int continues = 0;"),
            ],
        },
    ),
    in_c(
        "last_page_of_a_commit_not_checked",
        "recovery takes a commit for whole without what its last page has",
        "I19, some messages of a batch",
        {SIM: 60.0},
        {
            "protocol/judge.c": [
                ("if (judge->continues && !continues && !is_end &&", "if (0 && !is_end &&"),
            ],
        },
    ),
    in_c(
        "flag_of_a_dropped_commit_kept",
        "the page in which recovery dropped a commit keeps the flag that the commit goes on",
        "I5, a message that was flushed into it",
        {CUT: 90.0},
        {
            "protocol/judge.c": [
                ("is_fresh = continues || file->state", "is_fresh = file->state"),
            ],
        },
    ),
    in_python(
        "live_writers_pages_removed",
        "staged pages are removed, whether their writer lives or not",
        "I23, what is being written is gone",
        {KILL: 20.0},
    ),
    in_python(
        "filled_out_of_order",
        "pages that were filled at the same time are taken in another order",
        "I1, messages in another order than sent",
        {KILL: 20.0},
    ),
    in_python(
        "next_page_counted",
        "a page that a dead producer left is counted with the active one",
        "what fits into a queue is refused for ever",
        {CANCEL: 10.0},
    ),
)


def visible_before_its_last_fragment() -> None:
    """Heads and other messages are named in time, the rest of a large message too late."""
    rewrite(
        staged_pages.StagedPages,
        "give_names",
        ("first_page: int)", "first_page: int, late: bool)"),
        ("is_back=False)", "is_back=False, late=late)"),
    )
    rewrite(
        staged_pages.StagedPages,
        "_rename",
        ("is_back: bool)", "is_back: bool, late: bool = False)"),
        (
            "                for name in (fmt.index_name",
            (
                "                fragment = page.fragment\n"
                "                is_rest = fragment is not None and fragment.head is None\n"
                "                is_left = not is_back and is_rest != late\n"
                "                for name in () if is_left else (fmt.index_name"
            ),
        ),
    )
    rewrite(
        publisher.BulkPublisher,
        "_publish_staged",
        (
            "staged.give_names(store, record.first_page)",
            "staged.give_names(store, record.first_page, late=False)",
        ),
        (
            "        end._commit_pages(page, header, beyond)",
            (
                "        end._commit_pages(page, header, beyond)\n"
                "        staged.give_names(store, record.first_page, late=True)"
            ),
        ),
    )


def wrong_fragment_joined() -> None:
    """Whatever fragment of the message a page has is taken for the next one."""
    rewrite(
        large_message.LargePayload,
        "fragment",
        ("if stated != ordinal:", "if False:"),
        ("if (fragment.offset, fragment.size) != self.head.extent(", "if not self.head.extent("),
    )


def half_a_message_kept() -> None:
    """A page in which no message begins is taken for one that nobody needs, or its part of one."""
    rewrite(
        trim_plan.TrimPlanner,
        "plan",
        (
            "    plan = TrimPlan(",
            (
                "    while number < wanted and store.count(number + 1) == 0:\n"
                "        number += 1\n"
                "    plan = TrimPlan("
            ),
        ),
    )


def staged_pages_not_synced() -> None:
    """Neither the blocks nor what the commit adds to them is on the disk for certain."""
    rewrite(
        staged_fragments.FragmentWriter,
        "_end_page",
        ("if self._synced:", "if False:"),
    )
    rewrite(staged_fragments, "write_start", ("if synced:", "if False:"))


def filled_out_of_order() -> None:
    """The last one first; without a second core there is only one at a time."""
    rewrite(
        filled_pages.PageFiller,
        "write",
        ("for page in pages:", "for page in reversed(pages):"),
    )


def live_writers_pages_removed() -> None:
    """The lock of a directory of staged pages is not looked at."""
    rewrite(publisher, "remove_abandoned", ("if lock.try_exclusive():", "if True:"))


def next_page_counted() -> None:
    """Room is asked for all pages after the active one, also if one of them is there already."""
    rewrite(
        publisher.BulkPublisher,
        "_make_room",
        ("if last - store.tail.page_number >= store.limits.pages:", "if False:"),
    )
