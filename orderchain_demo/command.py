"""`chainctl demo`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from chainctl.commands.stack import stack_of
from chainctl.exits import ExitCode
from chainctl.monitor_server import AddressType
from chainctl.options import Command, json_option, uses_settings
from chainctl.output import data, data_json, table, talk
from chainctl.units import Integer

if TYPE_CHECKING:
    from collections.abc import Callable

    from chainctl.monitor_server import Address
    from chainctl.settings import Settings
    from orderchain_demo.summary import Summary

ORDERS: Final = 200_000
ORDERS_MAX: Final = 10_000_000
"""Beyond it files and tables would fill an ordinary disk: 10 million orders take 5 GB."""


def _share(_: click.Context, __: click.Parameter, value: float) -> float:
    """Return a share of the frames. NaN is refused: it compares with nothing."""
    if not 0 <= value <= 1:
        raise click.BadParameter(f"{value} is not a share from 0 to 1.")
    return value


def _share_option(name: str, default: float, text: str) -> Callable[[Any], Any]:
    return click.option(
        name,
        type=float,
        callback=_share,
        metavar="SHARE",
        default=default,
        show_default=True,
        help=text,
    )


def _two_ports(_: click.Context, __: click.Parameter, value: Address | None) -> Address | None:
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
    type=Integer(1, ORDERS_MAX),
    metavar="COUNT",
    help=f"Orders to generate.  [default: {ORDERS}]",
)
@_share_option("--loss", 0.05, "Lose this share of the frames; above 0, the last one too.")
@_share_option("--duplicate", 0.02, "Send this share of the frames twice.")
@_share_option("--reorder", 0.02, "Delay this share of the frames by up to 11 others.")
@click.option(
    "--seed",
    type=Integer(0, 2**32 - 1),
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
@click.option(
    "--wrong-book",
    is_flag=True,
    help="Let the matching service lose an order of one book; Spark's replay names it.",
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
    wrong_book: bool,
    as_json: bool,
) -> ExitCode:
    """Sequence, lose, kill, fill and verify, on a local PostgreSQL and Kafka.

    Starts the stack and leaves it up. Sequences orders into a new chain; drops, repeats, reorders
    and delays frames between Kafka and the matching service, the last frame among the dropped;
    kills the service once; compares its state with the same orders applied straight; and has Spark
    verify database and journal, and replay the chain beside the books that the service has stored.
    Exit code 0 only if all is whole.
    """  # fmt: skip
    if input_ is not None and orders is not None:
        raise click.UsageError("--orders is for generated orders, --input brings its own.")
    if wrong_book and no_spark:
        raise click.UsageError("--wrong-book is for Spark's replay, not with --no-spark.")
    from chain_kernel.testing.memory_chain import LinkDial
    from orderchain_demo.run import DemoOptions, run_demo

    options = DemoOptions(
        input=input_,
        orders=ORDERS if orders is None else orders,
        dial=LinkDial(lost=loss, repeated=duplicate, held=reorder),
        seed=random.SystemRandom().getrandbits(32) if seed is None else seed,
        with_spark=not no_spark,
        has_wrong_book=wrong_book,
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
    from orderchain_demo.run import COMMANDS
    from orderchain_demo.summary import summary_rows

    table(("what", "result"), summary_rows(summary))
    data("")
    data("The servers stay up (chainctl stack down stops them). To look at what is left:")
    width = max(map(len, summary.commands.values()), default=0)
    for command, line in summary.commands.items():
        data(f"  {line:{width}}   {COMMANDS[command]}")
