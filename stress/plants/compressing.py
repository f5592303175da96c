"""Bugs of compressed pages; each function plants one, as in `patches.py`."""

from __future__ import annotations

from pagequeue.maintenance import compress
from pagequeue.page import compressed_page
from stress.plants.plant import COMBINED, COMPRESSION, in_c, in_python
from stress.plants.rewrite import rewrite

COMPRESSING = (
    in_python(
        "end_mark_left_out",
        "a page is compressed without its end-of-page marker",
        "I16, the next page is unreachable",
        {COMPRESSION: 15.0},
    ),
    in_python(
        "page_away_for_a_moment",
        "the page is removed before the compressed one has its name",
        "I16, a missing page",
        {COMPRESSION: 25.0},
    ),
    in_python(
        "index_away_too_early",
        "the index is removed before the compressed page has the name",
        "I16, a plain page without its index",
        {COMPRESSION: 20.0},
    ),
    in_python(
        "index_left_for_good",
        "a run does not remove the index that a killed one left",
        "space that is never given back",
        {COMPRESSION: 60.0},
    ),
    in_python(
        "compressing_unlocked",
        "two processes compress one page at once",
        "I16, half of a file gets the name",
        {COMPRESSION: 40.0},
    ),
    in_python(
        "written_and_not_compared",
        "a block is not written, and not compared",
        "I16, lost",
        {COMPRESSION: 15.0},
    ),
    in_python(
        "memory_given_twice",
        "inflated memory is given away under its reader",
        "false report of damage",
        {COMPRESSION: 45.0},
    ),
    in_python(
        "first_word_not_stored",
        "a block that is inflated stays unseen",
        "false report of damage",
        {COMPRESSION: 15.0},
    ),
    in_python(
        "larger_than_its_page_is_damage",
        "a page that would not shrink is called damaged",
        "false report of damage",
        {COMBINED: 60.0},
    ),
    in_c(
        "unfilled_is_the_end",
        "a block that is not inflated yet is taken for the end",
        "messages that are not read",
        {COMPRESSION: 15.0},
        {"python/reader.c": [("self->page->filler != Py_None", "0")]},
    ),
)


def end_mark_left_out() -> None:
    """The last block ends after the last frame."""
    rewrite(
        compress._Sealed,
        "__init__",
        ("self._used = self._content_end(scan)", "self._used = scan.position"),
    )


def page_away_for_a_moment() -> None:
    """The name leads nowhere between two calls."""
    rewrite(
        compress,
        "_swap",
        (
            "folder.rename(name + MAKER, name)",
            "folder.remove(name); folder.rename(name + MAKER, name)",
        ),
    )


def index_away_too_early() -> None:
    """Z5 comes before Z1."""
    read = "page = _Sealed(store, number)"
    removed = "folder.remove(fmt.index_name(store.prefix, number))"
    rewrite(compress.Compressor, "_one", (read, f"{read}; {removed}"))


def index_left_for_good() -> None:
    """A page that is compressed is not looked at again."""
    rewrite(
        compress.Compressor,
        "_one",
        ("_drop_index(store, number)  # a process died before it did", "pass"),
    )


def compressing_unlocked() -> None:
    """The lock of the temporary file is not checked."""
    rewrite(compress, "_temporary", ("fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass"))


def written_and_not_compared() -> None:
    """The first block stays zeros."""
    rewrite(
        compress._Sealed,
        "write",
        ("_write_all(fd, stored, at)", "i and _write_all(fd, stored, at)"),
    )
    compress._Sealed.compare = lambda *_: None  # type: ignore[method-assign]


def larger_than_its_page_is_damage() -> None:
    """What was written is compared before its size is."""
    written = "size = page.write(fd, self._level)  # Z1.\n"
    compared = f"{written}            page.compare(fd, size)\n"
    rewrite(compress.Compressor, "_one", (written, compared))


def memory_given_twice() -> None:
    """The pool does not check which regions are still in use."""
    rewrite(compressed_page.Pool, "_unused", ("sys.getrefcount(regions[i]) == UNUSED", "True"))


def first_word_not_stored() -> None:
    """What makes a block visible is left out."""
    rewrite(
        compressed_page.BlockInflater,
        "fill_block",
        ('region.store_half(block.position, int.from_bytes(data[:4], "little"))', "pass"),
    )
