"""The corpus as a document: one row for each damage."""

from __future__ import annotations

from stress.corpus.case import CASE_SECONDS_MAX
from stress.corpus.damage import DAMAGES, INTERFACES
from stress.corpus.live import LIVE, LIVE_INTERFACES, TYPED, LiveOutcome

HEAD = """\
# The hostile corpus

Printed by `python -m stress.corpus table`; a test compares. Each row is one damage of a good
queue's files, and the outcome that each way to use the queue must have. The campaign
`no_damage_goes_unnoticed` runs all of them on queues of several shapes. In all of them no file
outside of the directory may change, no process may crash or take longer than {seconds:g} s, no
message may appear that was not sent, and read-only use may not change a byte.

- **opening**: for writing, in the boot in which the queue was closed; then sending and reading all.
- **after a power cut**: the same, with the shared state of another boot.
- **reading after a power cut**: read-only, before a writer recovered the queue.
- **read-only**, and **reading** through such a handle. An error names file, position, message.
- **verify** names file, position, message and reason, and changes no file.
- **repair** repairs only damage that it can repair without losing a message.
- **salvage** copies every frame that is whole, byte for byte and with its time, and reports as lost
  exactly the others.
- **named consumer**: opened by its name, then receiving all and acknowledging, twice.

`—` marks an interface that does not apply to a damage.
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
    columns = ["damage", "what is done", *(TITLES[interface] for interface in INTERFACES)]
    lines += [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for damage in DAMAGES.values():
        cells = [str(damage.outcomes.get(interface, "—")) for interface in INTERFACES]
        lines.append(f"| {' | '.join([damage.name, damage.what, *cells])} |")
    lines += [LIVE_HEAD, f"{len(LIVE)} damages.", ""]
    columns = ["damage", "what is done", "reader", "read-only reader", "writer"]
    lines += [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for live in LIVE.values():
        ends = (typed(getattr(live, interface)) for interface in LIVE_INTERFACES)
        lines.append(f"| {' | '.join([live.name, live.what, *ends])} |")
    return "\n".join(lines) + "\n"


def typed(outcome: LiveOutcome) -> str:
    """Return an outcome in words; any typed error in short."""
    return "continues, or any typed error" if outcome == TYPED else str(outcome)
