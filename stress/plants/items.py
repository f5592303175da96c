"""Planted bugs of the drop-in for multiprocessing.Queue."""

from __future__ import annotations

from stress.plants.plant import ITEM, in_c, in_python

ITEMS = (
    in_python("done_when_got", "an object counts as done when it is got", "I14", {ITEM: 15.0}),
    in_python("never_done", "task_done does not acknowledge", "a second delivery", {ITEM: 15.0}),
    in_python("wrong_one_done", "task_done acknowledges another object", "I14", {ITEM: 15.0}),
    in_python(
        "dead_workers_unnoticed",
        "what a dead worker had stays its own",
        "a wait without end",
        {ITEM: 25.0},
    ),
    in_python(
        "large_gone_when_got",
        "a large object's file is removed before the object is done",
        "I18",
        {ITEM: 30.0},
    ),
    in_python(
        "large_swept_while_others_read",
        "a large file is taken for a leftover while it is in use",
        "I18",
        {ITEM: 40.0},
    ),
    in_python(
        "large_left_for_ever",
        "a large file that no message names stays",
        "I18, a disk that fills",
        {ITEM: 40.0},
    ),
    in_c(
        "bound_by_one_more",
        "one object too many fits into a queue with a maxsize",
        "I17",
        {ITEM: 30.0},
        {
            "python/writer_attempt.c": [
                (
                    "    return pq_table_next(&table, &place) + try->group_limit;",
                    "    return pq_table_next(&table, &place) + try->group_limit + 1;",
                )
            ]
        },
    ),
)
