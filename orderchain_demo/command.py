"""`chainctl demo`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from chainctl.commands.stack import stack_of
from chainctl.exits import ExitCode
from chainctl.monitor_server import AddressType
from chainctl.options import Command, json_option, uses_settings
from chainctl.output import data, data_json, table, talk
from orderchain_demo import DUPLICATE, LOSS, ORDERS, ORDERS_MAX, REORDER, DemoOptions

if TYPE_CHECKING:
    from chainctl.monitor_server import Address
    from chainctl.settings import Settings
    from orderchain_demo.summary import Summary


def _share(_: click.Context, __: click.Parameter, value: float) -> float:
    """Return a share of the frames. NaN is refused: it compares with nothing."""
    if not 0 <= value <= 1:
        raise click.BadParameter(f"{value} is not a share from 0 to 1.")
    return value


def _two_ports(_: click.Context, __: click.Parameter, value: Address | None) -> Address | None:
    """Return an address that has a port after its own."""
    if value is not None and not 0 < value.port < 2**16 - 1:
        raise click.BadParameter(f"{value} has no port of 1 to 65534.")
    return value


@click.command(cls=Command)
@click.option(
    "--input",
    "input_",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Orders: CSV or JSON Lines, plain or .gz .xz .zst.  [default: generated]",
)
@click.option(
    "--orders",
    type=click.IntRange(1, ORDERS_MAX),
    metavar="COUNT",
    help=f"Orders to generate.  [default: {ORDERS}]",
)
@click.option(
    "--loss",
    type=float,
    callback=_share,
    metavar="SHARE",
    default=LOSS,
    show_default=True,
    help="Lose this share of the frames; above 0, the last one too.",
)
@click.option(
    "--duplicate",
    type=float,
    callback=_share,
    metavar="SHARE",
    default=DUPLICATE,
    show_default=True,
    help="Send this share of the frames twice.",
)
@click.option(
    "--reorder",
    type=float,
    callback=_share,
    metavar="SHARE",
    default=REORDER,
    show_default=True,
    help="Delay this share of the frames by a few others, and half as many by many.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    metavar="NUMBER",
    help="The seed of the generated orders and the faults.  [default: drawn, and printed]",
)
@click.option(
    "--http",
    type=AddressType(),
    callback=_two_ports,
    metavar="[HOST:]PORT",
    help="Serve the metrics of the sequencing service there, and those of the matching service at "
    "the next port.",
)
@click.option(
    "--no-spark",
    is_flag=True,
    help="Verify as `chainctl verify --local` does: sooner, and without Spark's installation.",
)
@json_option
@uses_settings("stack_dir")
def demo(
    settings: Settings,
    input_: Path | None,
    orders: int | None,
    loss: float,
    duplicate: float,
    reorder: float,
    seed: int | None,
    http: Address | None,
    no_spark: bool,
    as_json: bool,
) -> ExitCode:
    """Sequence, lose, kill, fill and verify, on a local PostgreSQL and Kafka.

    Starts the stack and leaves it up. Sequences orders into a new chain; drops, repeats, reorders
    and delays frames between Kafka and the matching service, the last frame among the dropped;
    kills the service once; compares its state with the same orders applied straight; and has Spark
    verify database and journal. Exit code 0 only if all is whole.
    """  # fmt: skip
    if input_ is not None and orders is not None:
        raise click.UsageError("--orders is for generated orders, --input brings its own.")
    from orderchain_demo.run import run_demo

    options = DemoOptions(
        input=input_,
        orders=ORDERS if orders is None else orders,
        loss=loss,
        duplicate=duplicate,
        reorder=reorder,
        seed=random.SystemRandom().getrandbits(32) if seed is None else seed,
        with_spark=not no_spark,
        http=http,
    )
    summary = run_demo(stack_of(settings), options)
    if as_json:
        data_json(summary)
    else:
        _show_summary(summary)
    for objection in summary.not_whole:
        talk(f"Not whole: {objection}")
    return ExitCode.CLEAN if summary.whole else ExitCode.FINDINGS


def _show_summary(summary: Summary) -> None:
    from orderchain_demo.summary import summary_rows

    table(("what", "result"), summary_rows(summary))
    data("")
    data("The servers stay up (chainctl stack down stops them). To look at what is left:")
    width = max(map(len, summary.commands.values()), default=0)
    for command, line in summary.commands.items():
        data(f"  {line:{width}}   {_SHOWS[command]}")


_SHOWS: Final = {
    "status": "heads, leader and receivers of the chain",
    "receive": "the whole chain once more, in order, into a journal of its own",
    "verify": "verifies database, topic and journal, and compares them",
    "console": "all of it live in a browser, on loopback",
}
"""What the printed commands do."""
