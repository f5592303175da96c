"""The corpus as a document: one row for each damage."""

from __future__ import annotations

from stress.corpus.case import CASE_SECONDS_MAX
from stress.corpus.damage import DAMAGES, FACES
from stress.corpus.live import LIVE, LIVE_FACES, TYPED, Goes

HEAD = """\
# The hostile corpus

Printed by `python -m stress.corpus table`; a test compares. Each row is one damage of a good
queue's files, and what each way of looking at the queue must do. The campaign
`no_damage_goes_unnoticed` runs all of them on queues of several shapes; in all of them nothing
outside of the directory may be touched, nothing may crash or take longer than {seconds:g} s, no
message may appear that was not sent, and what only reads may not change a byte.

- **opening**: for writing, in the boot in which the queue was closed; then sending and reading all.
- **after a power cut**: the same, with the shared words of another boot.
- **reading after a power cut**: read-only, before a writer recovered the queue.
- **read-only**, and **reading** through what was opened so. An error names file, position, message.
- **verify** names file, position, message and reason, and changes nothing.
- **repair** mends only what can be mended without losing a message.
- **salvage** copies every frame that is whole, byte for byte and with its time, and reports as lost
  exactly the others.
- **named consumer**: opened by its name, then receiving all and acknowledging, twice.

`—` stands where a face makes no sense for a damage.
"""
LIVE_HEAD = """
## While the queue is open

The queue is open and was used when the damage is done; then it is read, or written, on.
"""
TITLES = {
    "opening": "opening",
    "after_cut": "after a power cut",
    "reading_after_cut": "reading after a power cut",
    "read_only": "read-only",
    "reading": "reading",
    "verify": "verify",
    "repair": "repair",
    "salvage": "salvage",
    "named": "named consumer",
}


def table() -> str:
    """Return the document."""
    lines = [HEAD.format(seconds=CASE_SECONDS_MAX), f"{len(DAMAGES)} damages.", ""]
    columns = ["damage", "what is done", *(TITLES[face] for face in FACES)]
    lines += [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for damage in DAMAGES.values():
        cells = [str(damage.outcomes.get(face, "—")) for face in FACES]
        lines.append(f"| {' | '.join([damage.name, damage.what, *cells])} |")
    lines += [LIVE_HEAD, f"{len(LIVE)} damages.", ""]
    columns = ["damage", "what is done", "reader", "read-only reader", "writer"]
    lines += [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for live in LIVE.values():
        ends = (typed(getattr(live, face)) for face in LIVE_FACES)
        lines.append(f"| {' | '.join([live.name, live.what, *ends])} |")
    return "\n".join(lines) + "\n"


def typed(outcome: Goes) -> str:
    """Return an outcome in words; any typed error in short."""
    return "goes on, or any typed error" if outcome == TYPED else str(outcome)
