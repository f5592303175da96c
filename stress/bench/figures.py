"""From what the roles measured to the figures of one run; one function for each kind of case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stress.bench.plan import NS_PER_US, Metrics, Outcome, percentiles_us

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stress.bench.plan import Plan

Outcomes = list[list[Outcome]]
BYTES_PER_MB = 1_000_000
MIB = 1 << 20


def _rate(plan: Plan, seconds: float) -> Metrics:
    per_s = plan.count / seconds
    return {
        "messages_per_s": per_s,
        "megabytes_per_s": per_s * plan.size_bytes / BYTES_PER_MB,
        "seconds": seconds,
    }


def first_to_last(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return the rate from the first send to the last message that any consumer received."""
    roles: Sequence[Outcome] = outcomes[0]
    started_ns = min(role.started_ns for role in roles)
    ended_ns = max(role.ended_ns for role in roles)
    return _rate(plan, Outcome(started_ns, ended_ns).seconds)


def first_to_last_written(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return the same, and what each flush wrote, in KiB, if one process did and it is counted."""
    figures = first_to_last(plan, outcomes)
    written = [role.counts.get("written_bytes", 0) for role in outcomes[0]]
    if len(written) == 1 and written[0] and "interval_ms" not in plan.options:
        flushes = max(1, plan.count // plan.options["every"])
        figures["written_kib_per_flush"] = written[0] / flushes / 1024
    return figures


def processor_time(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return what one call of each stage's only role took of the processor, in nanoseconds.

    Of the thread that called, and of its process, whose other threads make pages ready.
    """
    named = zip(("send", "receive"), outcomes, strict=True)
    return {
        f"{name}_{which}_ns": roles[0].counts[f"{which}_ns"] / plan.count
        for name, roles in named
        for which in ("thread", "process")
    }


def last_first_to_last(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return the same of the last stage; the stages before it prepare."""
    return first_to_last(plan, outcomes[-1:])


def last_written(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return what was sent and written before the last stage, which checks it."""
    return first_to_last_written(plan, outcomes[-2:])


def last_append_then_replay(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return the rates of the last two stages."""
    return append_then_replay(plan, outcomes[-2:])


def memory_of_both(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return the growth of sender and receiver, and the memory of a server between them."""
    del plan
    sender, receiver = outcomes[-1]
    figures = {
        "sender_mib": sender.counts["grown_bytes"] / MIB,
        "receiver_mib": receiver.counts["grown_bytes"] / MIB,
        "server_mib": sender.counts.get("server_bytes", 0) / MIB,
    }
    return {**figures, "all_mib": sum(figures.values()), "seconds": max(sender.seconds, 1e-9)}


def disk(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return what a message takes on the disk, in bytes and in times its payload."""
    role = outcomes[-1][0]
    per_message = role.counts["disk_bytes"] / plan.count
    return {
        "disk_bytes_per_message": per_message,
        "times_payload": per_message / plan.size_bytes,
        "seconds": role.seconds,
    }


def cold(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return how long the first read and the first send of a new process took, with opening."""
    del plan
    send, read = outcomes[-2][0], outcomes[-1][0]
    return {
        "first_read_us": read.seconds * 1e9 / NS_PER_US,
        "first_send_us": send.seconds * 1e9 / NS_PER_US,
        "seconds": read.seconds + send.seconds,
    }


def slower_loop(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return the rate of the slower of two loops that do not wait for each other."""
    return _rate(plan, max(role.seconds for role in outcomes[0]))


def append_then_replay(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return the rate of each of the two."""
    append, replay = outcomes[0][0], outcomes[1][0]
    return {
        "append_per_s": plan.count / append.seconds,
        "replay_per_s": plan.count / replay.seconds,
        "seconds": append.seconds + replay.seconds,
    }


def latency(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return percentiles of all samples of the last stage's first role, and its counts."""
    return latency_of_first(plan, outcomes[-1:])


def latency_of_first(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return the same of the first stage's first role, whatever the others do beside it."""
    del plan
    role = outcomes[0][0]
    figures: Metrics = {"seconds": role.seconds}
    for name, samples_ns in role.samples_ns.items():
        figures |= percentiles_us(samples_ns, f"{name}_")
    return figures | {name: float(count) for name, count in role.counts.items()}
