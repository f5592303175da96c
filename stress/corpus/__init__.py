"""The hostile corpus: named damages of a queue's files, each with the outcome it must have.

`python -m stress.corpus table` prints the table in `stress/CORPUS.md`;
`python -m stress.corpus run [NAME ...]` runs damages and prints every disagreement.
The campaign is `stress/no_damage_goes_unnoticed.py`.
"""

from __future__ import annotations

from stress.corpus import (
    compressed_pages,
    cursors,
    fragments,
    frames,
    indexes,
    metas,
    names,
    sealed_pages,
    special,
    tails,
    write_metas,
)
from stress.corpus.damage import DAMAGES, INTERFACES, Damage
from stress.corpus.live import LIVE

__all__ = ["DAMAGES", "INTERFACES", "LIVE", "Damage"]

FAMILIES = (
    sealed_pages,
    frames,
    tails,
    indexes,
    metas,
    write_metas,
    names,
    special,
    cursors,
    compressed_pages,
    fragments,
)
"""Importing one registers its damages."""
