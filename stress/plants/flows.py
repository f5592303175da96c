"""Bugs of flows and of waiting coroutines; each function plants one, as in `patches.py`."""

from __future__ import annotations

from pagequeue.flow import flow
from pagequeue.maintenance import trimmer
from pagequeue.producer import from_loop
from pagequeue.queue import flows
from pagequeue.receive import consumer
from pagequeue.wait import notifier
from stress.plants.plant import CANCEL, COMBINED, FLOW, in_python
from stress.plants.rewrite import rewrite

FLOWS = (
    in_python(
        "flow_acks_what_it_hands_out",
        "an element is acknowledged before it was worked on",
        "I11, lost at a kill",
        {FLOW: 15.0},
    ),
    in_python(
        "flow_forgets_the_last_message",
        "the upstream is not told where to continue",
        "elements twice in the queue",
        {FLOW: 15.0},
    ),
    in_python(
        "last_message_not_kept",
        "retention takes the last message, which a flow continues after",
        "elements twice in the queue",
        {FLOW: 20.0, COMBINED: 30.0},
    ),
    in_python(
        "flow_ends_with_its_upstream",
        "the flow ends before all that was stored came out",
        "elements that never come out",
        {FLOW: 15.0},
    ),
    in_python(
        "name_let_go_before_the_pump",
        "another flow begins while this one still stores",
        "elements twice in the queue",
        {FLOW: 40.0},
    ),
    in_python(
        "taken_before_a_suspension",
        "a coroutine that can be cancelled has taken a message",
        "a message lost by cancelling",
        {CANCEL: 10.0},
    ),
    in_python(
        "sent_behind_a_cancellation",
        "a send that waits for room continues when it is cancelled",
        "a cancelled message is there",
        {CANCEL: 20.0},
    ),
    in_python(
        "bell_never_rings",
        "the notifier's thread wakes no waiter",
        "I7, a missed wake-up",
        {CANCEL: 20.0},
    ),
)


def flow_acks_what_it_hands_out() -> None:
    """An element counts as done when it comes out."""
    rewrite(
        flow.Flow,
        "__next__",
        (
            "return message if message is not None else self._wait()",
            (
                "message = message if message is not None else self._wait()\n"
                "    self._done_with_last()\n    return message"
            ),
        ),
    )
    rewrite(
        flow.Flow,
        "__anext__",
        (
            "if isinstance(found, Message):\n",
            "if isinstance(found, Message):\n        self._done_with_last()\n",
        ),
    )


def flow_forgets_the_last_message() -> None:
    """The function that makes the upstream always gets None."""
    rewrite(flows, "_upstream", ("source(_last_stored(queue, consumer))", "source(None)"))


def last_message_not_kept() -> None:
    """Retention keeps no message of a queue that it empties, and the flow starts from scratch."""
    rewrite(trimmer.Trimmer, "_secure", ("if plan.has_flow:", "if False:"))
    rewrite(flows, "_last_stored", ("if tail < flow_from:", "if True:"))


def flow_ends_with_its_upstream() -> None:
    """It ends as soon as no more elements will be stored."""
    rewrite(flow.Flow, "_is_at_end", (" and self._consumer.sequence >= end_sequence", ""))
    rewrite(
        flow.Flow,
        "__next__",
        (
            "message = self._consumer.poll()\n",
            "if self._is_at_end(): raise StopIteration\n    message = self._consumer.poll()\n",
        ),
    )
    rewrite(
        flow.Flow,
        "_attempt",
        (
            "message if message is not None or not is_end else self._feeder",
            "self._feeder if is_end else message",
        ),
    )


def name_let_go_before_the_pump() -> None:
    """The consumer is closed first, and then the feeder."""
    rewrite(
        flow.Flow,
        "close",
        (
            "    if isinstance(self._feeder, ThreadFeeder):\n",
            "    self._consumer.close()\n    if isinstance(self._feeder, ThreadFeeder):\n",
        ),
    )
    rewrite(flow.Flow, "aclose", ("    try:\n", "    self._consumer.close()\n    try:\n"))


def taken_before_a_suspension() -> None:
    """Others may run between taking and returning."""
    rewrite(
        consumer.Consumer,
        "receive_async",
        (
            "    return message",
            "    import asyncio\n    await asyncio.sleep(0)\n    return message",
        ),
    )


def sent_behind_a_cancellation() -> None:
    """The whole send is done in a thread, which continues after its caller was cancelled."""
    rewrite(
        from_loop,
        "send_from_loop",
        (
            "    while True:\n",
            (
                "    import asyncio\n"
                "    return await asyncio.get_running_loop().run_in_executor(None, attempt, None)\n"
                "    while True:\n"
            ),
        ),
    )


def bell_never_rings() -> None:
    """Waiters are taken from the list, and not woken."""
    rewrite(notifier.Notifier, "_notify", ("loop.call_soon_threadsafe(_wake, woken)", "pass"))
