"""No test and no campaign is right or wrong by chance: what they wait for, and what is random.

Found are pauses of a fixed length in place of a condition, deadlines that a busy machine can pass,
upper bounds of measured times, and randomness without a seed; not in benchmarks, which measure.
Fine are a pause between two looks at a condition, a short one between the steps of a loop, and a
deadline whose end is what the function expects: it names that error, or that nothing comes. What is
computed, or comes from a call or another module, is not seen.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATHS = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("stress/**/*.py")]
SECONDS_MIN, STEP_SECONDS = 10.0, 0.01
"""A deadline is as long at least; a longer pause waits to be killed. The most between steps."""
DEADLINE_FIRST = {"wait", "join", "result", "receive", "receive_async", "claim", "claim_async"}
DEADLINE_FIRST |= {"take", "flush", "within"}
DEADLINE_AT = {"until": 1, "asyncio.wait_for": 1, "select.select": 3, "children.ended": 1}
EXPIRES = {"LockTimeout", "QueueFull", "NothingReceived", "Empty", "Full", "TimeoutError"}
EXPIRES |= {"TimeoutExpired", "FlushTimeout", "UpdateTimeout", "TooManyClaims", "RetryError"}
EXPIRES |= {"PageQueueError", "outcome"}
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
SEEDLESS = {"urandom", "uuid4", "randbits", "token_bytes", "token_hex", "SystemRandom"}
GENERATORS = {"Random", "default_rng", "RandomState"}
ALLOWED = {
    "makes the seed, and prints it": "main chance",
    "lets what hangs print where": "fork",
    "the ring stays full": "test_sender_that_waits_for_what_nobody_has_open_is_reported "
    "test_sender_that_waits_for_a_slow_consumer_is_not_reported "
    "test_sender_is_told_of_a_coroutine_that_was_cancelled",
    "any typed error may come": "flush send",
    "one of thousands must be in time": "test_early_sender_waits_no_longer_than_the_gathering_time",
    "it is about a time": "test_time_without_a_processor_is_lost "
    "test_wait_returns_when_an_entry_was_published test_timeout_of_a_large_message_is_kept "
    "test_process_that_dies_with_the_turn_delays_others_only_briefly "
    "test_dropped_queue_is_closed_during_a_get",
    "makes a step slow, so that others come in between": "_commit_slowly _get_ready took change "
    "squeezed waits_for_a_slow_publication test_threads_wait_for_a_compaction_however_long "
    "pages_lost_to_another test_exception_while_a_thread_waits_leaves_the_state_to_the_others "
    "test_first_jobs_of_many_threads_start_one_worker "
    "test_entry_is_not_replaced_by_what_continuing_read_before "
    "test_senders_at_the_same_time_share_syncs test_an_interrupted_call_waits_for_its_threads",
}
"""Why functions are as they are."""
WRONG = """time.sleep(0.2); thread.join(SOON); assert done.wait(1); queue.get(timeout=SOON)
assert time.monotonic() - began < 0.5; took = monotonic() - began; assert 0.1 <= took < SOON
random.choice([1]); rng = random.Random()"""
FINE = """while not done: time.sleep(0.2)
for _ in range(9): time.sleep(0.01)
assert not done.wait(1); assert time.monotonic() - began > 0.5
assert time.monotonic() - began < LONG; rng = random.Random(1)"""


def name_of(node: ast.AST) -> str:
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def constants(module: ast.Module) -> dict[str, object]:
    """Return the constants of a module."""
    found: dict[str, object] = {}
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name_of(target): node.value.value for target in targets}
    return found


def is_short(node: ast.AST, known: dict[str, object]) -> float:
    """Return a number of seconds that is too small for a deadline, else 0."""
    value = known.get(name_of(node), getattr(node, "value", None))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and 0 < value < SECONDS_MIN else 0.0


def measures(node: ast.AST) -> bool:
    """Whether an expression subtracts a clock's times."""
    parts = [n for n in ast.walk(node) if isinstance(getattr(n, "op", None), ast.Sub)]
    return any(name_of(n) in CLOCKS for part in parts for n in ast.walk(part))


def wrong_in(function: ast.AST, known: dict[str, object]) -> list[str]:
    """Return what is wrong in a function, each with its line."""
    nodes = list(ast.walk(function))

    def inside(kind: type[ast.AST]) -> set[ast.AST]:
        return {n for one in nodes if isinstance(one, kind) for n in ast.walk(one)}

    loops, steps, asserted = inside(ast.While), inside(ast.For), inside(ast.Assert)
    bare = {n.value for n in nodes if isinstance(n, ast.Expr)}
    fine = loops | {n.operand for n in nodes if isinstance(n, ast.UnaryOp)}
    expires = not EXPIRES.isdisjoint(map(name_of, nodes))
    assigned = [n for n in nodes if isinstance(n, ast.Assign) and measures(n.value)]
    timed = {name_of(target) for n in assigned for target in n.targets}

    def bounds(node: ast.Compare) -> str:
        small, large = [node.left, *node.comparators][-2:]
        if isinstance(node.ops[-1], ast.Gt | ast.GtE):
            small, large = large, small
        elif not isinstance(node.ops[-1], ast.Lt | ast.LtE):
            return ""
        is_long = bool(name_of(large)) and not is_short(large, known)
        is_timed = measures(small) or name_of(small) in timed
        return "bounds a time" if is_timed and not is_long else ""

    def call(node: ast.Call) -> str:
        name, whole = name_of(node.func), ast.unparse(node.func)
        place = 0 if name in DEADLINE_FIRST else DEADLINE_AT.get(whole, len(node.args))
        ends = [k.value for k in node.keywords if k.arg == "timeout"] + node.args[place:][:1]
        if name == "sleep" or (name in {"wait", "join"} and node in bare):
            pause = max((is_short(n, known) for n in node.args), default=0)
            step = STEP_SECONDS if node in steps else 0
            return "pauses" if pause > step and node not in loops else ""
        if any(is_short(n, known) for n in ends) and not (expires or node in fine):
            return "has a short deadline"
        shared = whole.rpartition(".")[0] in {"random", "np.random"} and name not in GENERATORS
        seedless = shared or name in SEEDLESS or (name in GENERATORS and not node.args)
        return "is random without a seed" if seedless else ""

    found = [(n, bounds(n)) for n in asserted if isinstance(n, ast.Compare)]
    found += [(n, call(n)) for n in nodes if isinstance(n, ast.Call)]
    return [f"{n.lineno} {what}: {ast.unparse(n)}" for n, what in found if what]


def functions(module: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions and methods of a module."""
    body = [n for one in module.body if isinstance(one, ast.ClassDef) for n in one.body]
    return [n for n in module.body + body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.slow
def test_nothing_depends_on_time_or_on_chance() -> None:
    """And each exception is one of a function that needs it."""
    found: dict[str, list[str]] = {}
    for path in (path for path in PATHS if "bench" not in str(path.relative_to(ROOT))):
        module = ast.parse(path.read_text("utf-8"))
        for one in functions(module):
            lines = [f"{path}:{line}" for line in wrong_in(one, constants(module))]
            found[one.name] = found.get(one.name, []) + lines
    allowed = {name for names in ALLOWED.values() for name in names.split()}
    assert {name: lines for name, lines in found.items() if lines and name not in allowed} == {}
    assert {name for name in allowed if not found[name]} == set()


def test_what_depends_on_them_is_found() -> None:
    """Each kind of it, and not what only looks like it."""
    for lines, count in ((WRONG, 8), (FINE, 0)):
        (function,) = functions(ast.parse("def test():\n " + lines.replace("\n", "\n ")))
        assert len(wrong_in(function, {"SOON": 5.0, "LONG": 60.0})) == count
