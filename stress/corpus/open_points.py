"""Where the package does not yet do what the corpus requires: what it does, damages and faces.

A disagreement that stands here does not fail a run; one that does not, does. The list is to become
empty: what is mended is taken out, and `tests/test_corpus.py` says which entries that are.
"""

from __future__ import annotations

_FOUND: tuple[tuple[str, dict[str, str]], ...] = (
    (
        (
            "verify does not look behind the tail, and repair does not zero what stands there; "
            "sending fails"
        ),
        {
            "dirty tail": "verify repair",
            "dirty tail of ones": "verify repair",
            "stale frame behind the tail": "verify repair",
        },
    ),
    (
        "opening and repair settle a batch without an end, so that its half is published (I8)",
        {
            "half a batch behind the tail": "verify repair",
        },
    ),
    (
        "salvage does not copy what was published behind the tail words (I3)",
        {
            "tail words behind by a message": "salvage",
            "tail count wrong": "verify salvage",
        },
    ),
    (
        "salvage believes a head that cannot be, copies nothing, and says that all is well",
        {
            "readMeta with head page behind the tail": "after_cut salvage repair",
        },
    ),
    (
        (
            "salvage and repair believe an allMeta that every other file contradicts, copy "
            "nothing, and say that all is well"
        ),
        {
            "allMeta of another queue": "salvage repair",
        },
    ),
    (
        (
            "one frame with a time in the far future costs salvage the frames behind it, and "
            "changes the times of later ones"
        ),
        {
            "time at its end": "salvage repair",
        },
    ),
    (
        "salvage does not go on behind an end mark that the next page contradicts",
        {
            "end mark too early": "salvage repair",
        },
    ),
    (
        ("a first sequence that is wrong is believed, though frames and neighbours prove another"),
        {
            "header one sequence ahead": "salvage repair",
            "header one sequence behind": "salvage repair",
            "header without first sequence": "salvage",
            "header with the last sequence there is": "salvage repair",
            "active page one sequence ahead": "salvage repair",
        },
    ),
    (
        "a floor that is wrong is not mended",
        {
            "header with a floor above its frames": "repair",
            "header with a floor below the page before": "repair",
            "header with a negative floor": "repair",
        },
    ),
    (
        "repair overwrites a meta file of a newer format",
        {
            "readMeta of a newer format": "repair",
            "writeMeta of a newer format": "repair",
        },
    ),
    (
        "format 0, which there never was, is accepted",
        {
            "header of format 0": "reading verify repair after_cut",
            "allMeta of format 0": "opening after_cut read_only verify",
        },
    ),
    (
        "verify does not look at the lock file",
        {
            "pipe as queue.lock": "verify",
            "device as queue.lock": "verify",
            "directory as queue.lock": "verify",
            "dangling link as queue.lock": "verify",
            "symbolic link as queue.lock": "verify",
        },
    ),
    (
        "a head page of 0 is taken for a file that was truncated, by verify and repair too",
        {
            "readMeta with head page 0": "opening read_only",
        },
    ),
    (
        "verify and repair do not see a second name that writing will stumble over",
        {
            "hard link as active page": "repair",
            "hard link as queue-writeMeta": "repair",
            "hard link as queue-readMeta": "repair",
            "sealed page linked as the next": "verify repair",
        },
    ),
    (
        (
            "a writeMeta that is overwritten while it is open leads to an OverflowError of "
            "`info`, and an OSError of `send`"
        ),
        {
            "while open: writeMeta of noise": "reader read_only_reader writer",
            "while open: writeMeta of ones": "reader read_only_reader writer",
        },
    ),
    (
        "verify does not compare these words with the frames",
        {
            "tail words inside a frame": "verify",
            "last timestamp ahead": "verify",
            "last timestamp behind": "verify",
            "tail words behind by a page": "verify",
        },
    ),
    (
        (
            "a page header with a first sequence of 2**63 ends in a ValueError of the core: the "
            "sequences are not in order"
        ),
        {
            "header with a sequence that cannot be": "after_cut verify repair salvage",
        },
    ),
    (
        "the index of the active page is mended without a word",
        {
            "index missing": "repair",
            "index of the active page missing": "repair",
            "index empty": "repair",
            "index too short": "repair",
            "index too long": "repair",
            "index of the active page too long": "repair",
            "index of zeros": "repair",
            "index of the active page of zeros": "repair",
            "index of ones": "repair",
            "index of noise": "repair",
            "index shifted": "repair",
            "index in reverse": "repair",
            "index record with another place": "repair",
            "index record past the end": "repair",
            "index record into the header": "repair",
            "index record missing": "repair",
            "index record with another time": "repair",
            "index record with the last time there is": "repair",
            "index record of a negative time": "repair",
            "index record of the frame before": "repair",
        },
    ),
)

OPEN_POINTS: dict[tuple[str, str], str] = {
    (name, face): sentence
    for sentence, damages in _FOUND
    for name, faces in damages.items()
    for face in faces.split()
}
"""By damage and face."""
