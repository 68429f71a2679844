"""The pytest plugin, as a project that embeds the engine meets it."""

import sys
from pathlib import Path

import pytest

from tests.pages import blocks_of
from tests.programs import output_of

pytest_plugins = ["pytester"]

OUTBOX_GUIDE = Path(__file__).parents[4] / "docs" / "choosing-a-delivery-mode.md"
CARELESS = """
import json

BOOK = "INSERT INTO balance VALUES ($1, $2) ON CONFLICT (account) DO UPDATE SET ..."
MAILS = []

async def book(delivery, connection):
    trade = json.loads(delivery.payload)
    await connection.execute(BOOK, trade["account"], trade["qty"])
    MAILS.append(delivery.message_id)
"""

SERVICE = """
from matcher_receiver import Receiver, ReceiverConfig


def make_receiver(chain):
    return Receiver(
        ReceiverConfig(chain_id=chain.chain_id),
        chain.frames(), chain.gap_source(), chain.checkpoints(),
    )
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project of somebody else, with a service."""
    pytester.makepyfile(service=SERVICE)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    options = ["-p", "no:cacheprovider", "-o", "asyncio_mode=auto", *arguments]
    options += ["-o", "asyncio_default_fixture_loop_scope=function"]
    return project.runpytest_subprocess(*options)


def test_plugin_imports_nothing_heavy_until_a_fixture_is_used() -> None:
    heavy = ("msgspec", "asyncpg", "aiokafka", "pyspark", "chain_kernel.model", "local_stack")
    program = (
        "import sys, orderchain.pytest_plugin\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert output_of(sys.executable, "-c", program) == "[]\n"


def test_checkpoint_outside_of_a_transaction_fails_a_test(project: pytest.Pytester) -> None:
    """As over PostgreSQL: there the effect stays and the place does not, after a crash between."""
    project.makepyfile(
        """
        import pytest
        from orderchain import errors
        from service import make_receiver

        ADD = "INSERT INTO done VALUES ($1)"

        async def test_checkpoint_after_the_transaction(orderchain_memory_chain):
            chain = orderchain_memory_chain
            chain.tables["done"] = []
            chain.answer(ADD, lambda tables, event: tables["done"].append(event))
            chain.commit([b"x"])
            connection = await chain.connect()
            async with make_receiver(chain) as receiver:
                run = await anext(receiver)
                with pytest.raises(ZeroDivisionError):
                    async with connection.transaction():  # neither effect nor place
                        await connection.execute(ADD, 1)
                        await receiver.checkpoint(run, connection=connection)
                        1 / 0
                assert chain.tables["done"] == []
                assert chain.checkpoint().id == 0
                async with connection.transaction():
                    await connection.execute(ADD, 1)
                with pytest.raises(errors.SettingError, match="outside of a transaction"):
                    await receiver.checkpoint(run, connection=connection)
                async with connection.transaction():
                    await receiver.checkpoint(run, connection=connection)
                assert chain.checkpoint().id == chain.committed[-1].id
                with pytest.raises(errors.SettingError, match="there is no SQL here"):
                    await connection.fetch("SELECT 1")
        """
    )
    run(project).assert_outcomes(passed=1)


@pytest.fixture
def outbox_project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with the files of the guide, as they are written there."""
    blocks = [each for each in blocks_of(OUTBOX_GUIDE) if each.title.endswith(".py")]
    found = [(block.title, block.text) for block in blocks]
    assert {name for name, _ in found} == {"handlers.py", "test_handlers.py"}
    for name, content in found:
        (pytester.path / name).write_text(content, encoding="utf-8")
    return pytester


@pytest.mark.nightly
def test_guide_to_the_outbox_as_written_passes(outbox_project: pytest.Pytester) -> None:
    run(outbox_project, "-W", "error").assert_outcomes(passed=1)


@pytest.mark.nightly
def test_careless_handler_fails_with_every_seed(outbox_project: pytest.Pytester) -> None:
    (outbox_project.path / "handlers.py").write_text(CARELESS, encoding="utf-8")
    test = (outbox_project.path / "test_handlers.py").read_text()
    seeds = "@pytest.mark.parametrize('orderchain_outbox', range(20), indirect=True)\n"
    test = test.replace("def test_", f"{seeds}def test_")
    test = test.replace("    outbox = ", "    MAILS.clear()\n    outbox = ")
    test = f"import pytest\nfrom handlers import MAILS\n{test}"
    test += "    assert len(MAILS) == len(set(MAILS)), 'a mail was sent twice'\n"
    (outbox_project.path / "test_handlers.py").write_text(test)
    shown = run(outbox_project)
    shown.assert_outcomes(failed=20)
    shown.stdout.fnmatch_lines(["*ORDERCHAIN_OUTBOX_SEED=17*"])
    assert shown.stdout.str().count("AssertionError: a mail was sent twice") >= 20
