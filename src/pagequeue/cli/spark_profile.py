"""`pagequeue spark profile`: figures of queues, or of an archive of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pagequeue.cli import options as shared
from pagequeue.cli import spark as sparks
from pagequeue.cli.profile import chosen_suffix, force_option, page_of_plots, show, target_option

if TYPE_CHECKING:
    from pagequeue.util.literals import Trust


@click.command()
@click.argument(
    "source", metavar="QUEUES...|TABLE", nargs=-1, required=True, type=click.Path(readable=False)
)
@target_option
@shared.since_option
@shared.until_option
@force_option
@sparks.damage_option
@sparks.session_options
@shared.json_option()
@shared.prefix_option
@shared.trust_option
def command(
    source: tuple[str, ...],
    target: str | None,
    prefix: str,
    trust: tuple[Trust, ...],
    on_damage: str,
    master: str | None,
    settings: dict[str, str],
    *,
    since: int | None,
    until: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Show rates, sizes, gaps, lags, and what is missing, late or there twice.

    Of QUEUES, directories or globs, or of the TABLE that `archive` made. A gap is the time from a
    message to the next one of its queue; a late message is older than one with a lower sequence;
    the lag of a table is the number of messages that its queue has more, if that is on this host.

    \b
    pagequeue spark profile table --to profile.html
    pagequeue spark profile events orders --json
    """  # noqa: D301 - click's own mark is the character
    sparks.check_extra()
    from pagequeue.spark.pipeline import profile, table_layout  # noqa: PLC0415 - the extra

    suffix = chosen_suffix(target)
    options: dict[str, Any] = {}
    if not (len(source) == 1 and table_layout.is_table(source[0])):
        options = sparks.source_options(prefix, trust, on_damage)
    with page_of_plots(target, suffix, ", ".join(source), force=force) as draw:
        with (
            sparks.progress_of("reading, in tasks") as progress,
            sparks.session(master, settings) as spark,
        ):
            found = profile(spark, source, since=since, until=until, progress=progress, **options)
        draw(found)
    show(found, target, as_json=as_json)
