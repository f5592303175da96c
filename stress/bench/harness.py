"""Runs one plan: its roles in new processes, one start barrier, and a watchdog.

A role that fails its checks, dies, or takes longer than the plan's stall limit fails the
measurement with CheckFailed; the other processes of the stage are then ended.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import threading
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress.bench.plan import CheckFailed, Metrics, Outcome, Plan, Role

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnContext, SpawnProcess
    from multiprocessing.synchronize import Barrier

CONTEXT: SpawnContext = multiprocessing.get_context("spawn")
END_SECONDS = 10.0  # longest wait for a process that has returned its outcome


def _child(
    plan: Plan,
    place: tuple[Role, int, int | None],
    barrier: Barrier,
    pipe: Connection,
    shared: object,
) -> None:
    """Run one role, and return its outcome or how it failed."""
    assert plan.peer is not None
    role, index, processor = place
    if processor is not None:
        os.sched_setaffinity(0, {processor})
    try:
        peer = plan.peer(plan, shared)
        outcome = role(peer, index, lambda: barrier.wait(plan.stall_seconds))
    except threading.BrokenBarrierError:
        pipe.send("another process failed first")
    except Exception as error:  # noqa: BLE001 - every exception is passed to the parent
        barrier.abort()
        where = traceback.format_exc() if not isinstance(error, CheckFailed) else ""
        pipe.send(f"{type(error).__name__}: {error}\n{where}".strip())
    else:
        pipe.send(outcome)
        peer.close()


def _gather(
    pipes: Sequence[Connection], processes: Sequence[SpawnProcess], stall_seconds: float
) -> list[Outcome]:
    """Return every role's outcome; raise as soon as one has failed."""
    answers: dict[int, Any] = {}
    deadline = time.monotonic() + stall_seconds
    while len(answers) < len(pipes):
        waiting = [pipe for number, pipe in enumerate(pipes) if number not in answers]
        ready = wait(waiting, max(0.0, deadline - time.monotonic()))
        if not ready:
            names = [processes[pipes.index(pipe)].name for pipe in waiting]
            raise CheckFailed(
                f"stalled for {stall_seconds} s from {', '.join(names)}: a message was lost, or a "
                "process hangs"
            )
        for pipe in waiting:
            if pipe in ready:
                number = pipes.index(pipe)
                try:
                    answers[number] = pipe.recv()
                except EOFError:
                    answers[number] = f"{processes[number].name} died"
        told = [answer for answer in answers.values() if isinstance(answer, str)]
        causes = [answer for answer in told if not answer.startswith("another process")]
        if causes:
            raise CheckFailed(causes[0])
        if told and len(answers) == len(pipes):
            raise CheckFailed(told[0])
    return [answers[number] for number in range(len(pipes))]


def _processors(plan: Plan, count: int) -> list[int | None]:
    """Return a processor for each role of a stage, where asked for and there are enough."""
    there = sorted(os.sched_getaffinity(0))
    return [*there[:count]] if plan.pinned and len(there) >= count else [None] * count


def _run_stage(plan: Plan, stage: Sequence[Role]) -> list[Outcome]:
    """Run the roles of one stage at once."""
    assert plan.peer is not None
    shared = plan.peer.share(plan, CONTEXT)
    barrier = CONTEXT.Barrier(len(stage))
    places: Counter[Role] = Counter()
    with ExitStack() as stack:
        stack.callback(plan.peer.unshare, shared)
        processes, pipes = [], []
        for role, processor in zip(stage, _processors(plan, len(stage)), strict=True):
            ours, theirs = CONTEXT.Pipe(duplex=False)
            stack.callback(ours.close)
            name = f"{role.__name__} {places[role]}"
            process = CONTEXT.Process(
                target=_child,
                args=(plan, (role, places[role], processor), barrier, theirs, shared),
                name=name,
                daemon=True,
            )
            places[role] += 1
            process.start()
            theirs.close()
            stack.callback(_end, process)
            processes.append(process)
            pipes.append(ours)
        outcomes = _gather(pipes, processes, plan.stall_seconds)
        for process in processes:
            process.join(END_SECONDS)
            if process.exitcode != 0:
                raise CheckFailed(f"{process.name} did not end well: {process.exitcode}")
        return outcomes


def _end(process: SpawnProcess) -> None:
    """End a process that this module started, if it still runs."""
    if process.is_alive():
        process.kill()
    process.join()
    process.close()


def measure(plan: Plan, base: Path) -> Metrics:
    """Run all stages of a plan in a new directory under `base`, and return its figures.

    Raises:
        CheckFailed: a message was lost, doubled, torn or out of order, or a process failed.
    """
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=base))
    placed = replace(plan, directory=directory)
    try:
        outcomes = [_run_stage(placed, stage) for stage in placed.stages]
        return placed.summary(placed, outcomes)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
