"""Every command that a page shows, run by a shell over real servers, in a world prepared for it.

`chainctl` is called in the process of the tests: a small program in its place hands over what the
shell gives it. A service that would run until it is stopped is started, awaited and stopped.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import asyncpg
import pytest
from pyspark.sql import SparkSession

from chain_kernel.errors import PrimaryBehind
from chain_kernel.model import Mark
from local_stack import KafkaServer, PostgresServer
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from matcher_receiver import CheckpointConfig, PostgresCheckpointStore
from outbox import Message, add_many, draw_message_ids
from outbox.consumer.delivery import Delivery
from outbox.consumer.inbox import TRIES_USED_UP, Inbox
from tests.builders.orders import order_file
from tests.command_call import call_here
from tests.deadlines import LONG_SECONDS
from tests.integration.chainctl.conftest import clean_environment, must
from tests.opened import connected
from tests.pages import PAGES, ROOT, Block, blocks_of

ROWS: Final = 6_200
BATCH_END: Final = 5_000
TOKEN: Final = "a-token-of-tests"

ELSEWHERE: Final = {
    r"^(\.venv/bin/)?chainctl (status|receive|verify) --demo": "test_demo: after a demo",
    r"^(\.venv/bin/)?chainctl stack|^eval ": "test_stack, and the guides",
    r"^(\.venv/bin/)?chainctl console|/api/acts": "chainctl/console, in a browser and over HTTP",
    r"^(zcat|ssh) ": "test_sequence: standard input",
    r"^chainctl bench": "test_bench: it takes minutes",
    r"--master spark://|^PYSPARK_PYTHON=": "chain_verifier/test_cluster: with a cluster",
    r"^prometheus ": "tests/prometheus.py runs it with the same file",
    r"^make ": "unit/house/test_snippets: the targets exist; CI or a release calls each",
    r"verify table": "chain_verifier/dataframe/test_tables, with a catalog",
    r"^(python|python -m pytest|cat|cmp|grep|wait|mkdir|kill|sleep)\b": "the guides' own tests",
    r"^(pip|python3 -m venv|/opt/orderchain/bin/pip)\b": "packaging/test_empty_environment",
    r"^(cp|chown|install|systemctl|podman)\b": "neither systemd nor a builder: unit/deploy",
    r"^nginx\b": "outbox/service/test_proxy",
    r"^export CHAINCTL_KAFKA=broker|^export (CHAINCTL_KAFKA_|PG)": "test_secured",
    r"^export CHAINCTL_DATABASE=": "test_secured; the world has servers of its own",
}
"""Lines that are not run here, by a pattern, and which test or why."""

GUIDES: Final = {"tutorial.md", "embed-a-matching-service.md", "embed-a-sequencing-service.md"}
"""Followed whole by `test_embedding_guide`."""

LONG: Final = re.compile(r"--intake-topic|receive .*--follow|outbox relay|messages serve")
"""Commands that run until they are stopped."""

FINDS: Final = {
    ("stuck-message.md", "outbox status"): 1,  # it is what the page is about
    ("stuck-message.md", "outbox abandon"): 1,  # the message is confirmed here: nothing to change
    # The first line retries the only dead letter that waits.
    ("choosing-a-delivery-mode.md", "outbox dead retry --why"): 1,
    ("choosing-a-delivery-mode.md", "outbox dead abandon"): 1,
    ("forgotten-reader.md", "receivers move"): 2,  # the step before has forgotten this receiver
    ("restored-backup.md", "lag"): 1,  # no service runs here that would go on after the move
}
"""Exit codes that are not 0, by the page and the beginning of the command."""

LED: Final = {"failover-drill.md"}
"""Pages about a chain that somebody leads."""

HALTED: Final = {"halted-receiver.md", "restored-backup.md"}
"""Pages about a receiver that has halted."""


def commands_of(block: Block) -> list[str]:
    """Return the lines of a block for a shell, each as one text, without comments."""
    joined = block.text.replace("\\\n", " ")
    lines = (re.sub(r"(^|\s)#.*$", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def elsewhere(line: str) -> str | None:
    """Return why a line is not run here, None if it is."""
    return next((why for pattern, why in ELSEWHERE.items() if re.search(pattern, line)), None)


class World(NamedTuple):
    """A chain with a receiver, a journal, an archive, messages, and all that pages speak of."""

    folder: Path
    chain: int
    seal: str
    """Id and seal of the head."""
    settings: dict[str, str]
    replaced: dict[str, str]
    """What pages say, as patterns, and what it is called here."""

    def here(self, line: str) -> str:
        for pattern, own in self.replaced.items():
            line = re.sub(pattern, own, line)
        return line


CLIENT: Final = """\
#!{python} -IS
import json, os, socket, sys
talk = socket.socket(socket.AF_UNIX)
talk.connect({address!r})
talk.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode() + b"\\n")
code, out, err = json.loads(talk.makefile("rb").readline())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


class Shell:
    """Runs lines by bash, whose `chainctl` is a call in this process."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.socket = socket.socket(socket.AF_UNIX)
        self.address = str(world.folder / "chainctl.socket")
        self.socket.bind(self.address)
        self.socket.listen()
        self.socket.settimeout(0.05)
        programs = world.folder / "bin"
        programs.mkdir()
        client = programs / "chainctl"
        client.write_text(CLIENT.format(python=sys.executable, address=self.address))
        client.chmod(0o755)
        self.services: list[subprocess.Popen[bytes]] = []
        self.environment = clean_environment(
            {**world.settings, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        )
        self.bash = subprocess.Popen(
            ["bash", "-u"],
            cwd=world.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def close(self) -> list[int]:
        """Stop the services; return how they ended."""
        self.bash.kill()
        self.bash.communicate()
        self.socket.close()
        for service in self.services:
            service.send_signal(signal.SIGTERM)
        for service in self.services:
            service.communicate()
        return [service.returncode for service in self.services]

    def run(self, line: str) -> tuple[int, str]:
        """Run a line; return its exit code and what it wrote."""
        assert self.bash.stdin is not None
        assert self.bash.stdout is not None
        said = self.world.folder / "said"
        ended = self.world.folder / "ended"
        ended.unlink(missing_ok=True)
        self.bash.stdin.write(
            f"{{ {line}\n}} >{said} 2>&1 </dev/null\necho $? >{ended}.part\n"
            f"mv {ended}.part {ended}\n"
        )
        self.bash.stdin.flush()
        while not ended.exists():
            assert self.bash.poll() is None, line
            self.answer_one()
        return int(ended.read_text()), said.read_text(encoding="utf-8", errors="replace")

    def answer_one(self) -> None:
        """Run the command that the shell asks for, if it does."""
        try:
            talk, _ = self.socket.accept()
        except TimeoutError:
            return
        with talk, talk.makefile("rwb") as stream:
            arguments, folder, environment = json.loads(stream.readline())
            settings = {name: environment[name] for name in environment if name.startswith("CHAIN")}
            if LONG.search(" ".join(arguments)):
                answer = self.begin(arguments, settings)
            else:
                done = call_here(arguments, settings, Path(folder))
                answer = (done.code, done.out, done.err)
            stream.write(json.dumps(answer).encode() + b"\n")

    def begin(self, arguments: list[str], settings: dict[str, str]) -> tuple[int, str, str]:
        """Start a service, and wait until it says that it is ready.

        A first sequencer leads at once, and only then is there a leader for the next command.
        """
        is_first = "sequence" in arguments and not self.services
        wanted = b"leads chain" if is_first else b"READY=1"
        path = self.world.folder / "notify"
        log = self.world.folder / f"service-{len(self.services)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified, log.open("wb") as into:
            notified.bind(str(path))
            notified.settimeout(0.1)
            process = subprocess.Popen(
                [sys.executable, "-m", "chainctl", *arguments],
                cwd=self.world.folder,
                env=clean_environment(settings) | {"NOTIFY_SOCKET": str(path)},
                stdout=into,
                stderr=into,
            )
            self.services.append(process)
            ready = False
            while not ready and process.poll() is None:
                with suppress(TimeoutError):
                    ready = wanted in notified.recv(4096)
            path.unlink()
        return process.returncode or 0, log.read_text(encoding="utf-8"), ""


# -- the world ----------------------------------------------------------------------------------


@pytest.fixture
def world(
    postgres_server: PostgresServer, kafka_server: KafkaServer, database_with: Callable[..., str],
    make_topic: Callable[..., None], free_chain: int, spark: SparkSession, tmp_path: Path,
) -> World:  # fmt: skip
    """Everything that a page may name, in a database of its own."""
    assert spark is not None
    database = postgres_server.dsn(SUPERUSER, database_with("chain", "outbox", "inbox", "callback"))
    settings = {"CHAINCTL_DATABASE": database, "CHAINCTL_KAFKA": kafka_server.bootstrap}
    make_topic(f"orders-{free_chain}")
    tell = partial(must, settings=settings)
    seal = fill(tell, free_chain, tmp_path)
    message, letter = leave_messages(tell, database, free_chain)
    leave_files(tmp_path, free_chain, seal)
    replaced = {
        r"--chain (1|7|100)\b": f"--chain {free_chain}",
        r"chain create (1|7|100)\b": f"chain create {free_chain}",
        r"--(intake-topic|check-topic|confirm-topic|topic) ([\w.]+)": rf"--\1 \2-{free_chain}",
        r"topic create orders\b": f"topic create made-{free_chain}",
        r"--replicas 3 --set min.insync.replicas=2": "--replicas 1 --set min.insync.replicas=1",
        r"'postgresql://[^']*'": f"'{database}'",
        r"\b90000000:0{64}": seal,
        r"seal-7-\d{19}": f"seal-{free_chain}-{ROWS:019d}",
        r"\b81234567\b": f"{ROWS}",
        r"\b(90000000|80000000|79999000)\b": f"{BATCH_END}",
        r"019ae3a0-7c1b-7000-8000-000000000001": str(message),
        r"01a1ff32-702a-7000-bee7-0d27d3fad75f": str(letter),
        r"/archive/chain-7": f"{tmp_path}/archive/chain-{free_chain}",
        r"/var/lib/orderchain-archive|\bDIR\b": f"{tmp_path}/archive",
        r"--(findings|report) ": rf"--\1 {tmp_path}/",  # Spark works in a folder of its own
        r"/etc/orderchain|/mnt/vault|/var/lib/chain-7|/var/journals": str(tmp_path),
        r"/mnt/seals": f"{tmp_path}/kept-seals",
        r"\b8085\b": f"{free_port()}",
    }
    settings |= {"CLEARING_DATABASE": database, "TOKEN": TOKEN, "CHAINCTL_KEY_WINDOW_ROWS": "1000"}
    return World(tmp_path, free_chain, seal, settings, replaced)


def fill(tell: Callable[..., str], chain: int, folder: Path) -> str:
    """Leave a chain with rows, a journal, a receiver, a verified mark, an archive.

    Return the seal of its head.
    """
    orders = order_file(folder / "orders.csv", ROWS)
    tell("chain", "create", chain)
    tell("sequence", "--chain", chain, "--input", orders)
    tell("receive", "--chain", chain, "--output", folder / "journal.jsonl")
    tell("verify", "--local", "--chain", chain, "--source", "database", "--since-verified")
    tell("archive", "--chain", chain, "--archive", folder / "archive")
    tell("seal", "export", "--chain", chain, "--store", folder / "kept-seals")
    return tell("seal", "export", "--chain", chain).split()[0]


def leave_messages(tell: Callable[..., str], database: str, chain: int) -> tuple[UUID, UUID]:
    """Leave an abnormal message and a dead letter; return their ids."""
    tell(
        "outbox", "destination", "set", "clearing", "--topic", f"clearing-{chain}",
        "--consumer", "clearing-service", "--create-topics",
    )  # fmt: skip
    message, letter = draw_message_ids(2)

    async def leave() -> None:
        async with connected(database) as connection:
            async with connection.transaction():
                await add_many(connection, [Message(message, "clearing", b"T-1", key="T-1042")])
                await connection.execute(
                    "UPDATE outbox_pending SET status = 3, next_send_at = 'infinity'"
                )
            delivery = Delivery(
                message_id=letter, destination="clearing", payload=b"T-2", key_bytes=b"ALPHA",
                headers={}, topic="clearing", partition=0, offset=0, received_at=datetime.now(UTC),
            )  # fmt: skip
            inbox = await Inbox.open(connection, "clearing-service", LONG_SECONDS)
            await inbox.bury(
                connection, delivery, failures=17, reason=TRIES_USED_UP, error="ValueError: no"
            )

    asyncio.run(leave())
    return message, letter


def leave_files(folder: Path, chain: int, seal: str) -> None:
    """Leave the files that pages name."""
    (folder / f"{chain}.jsonl").write_bytes((folder / "journal.jsonl").read_bytes())
    (folder / "orders.jsonl").write_bytes((folder / "journal.jsonl").read_bytes())
    (folder / "head-of-7.txt").write_text(f"{seal} 2026-11-20T17:00:03.120000Z\n", encoding="utf-8")
    token = sha256(TOKEN.encode()).hexdigest()
    (folder / "clients.toml").write_text(
        f'[[client]]\nname = "payments"\ntoken_sha256 = ["{token}"]\ndestinations = ["clearing"]\n',
        encoding="utf-8",
    )
    (folder / "clients.toml").chmod(0o600)


RUN_EACH_MERGE: Final = {"halted-receiver.md"}
PAGES_TO_RUN: Final = [
    page
    for page in PAGES
    if page.name not in GUIDES
    and any(not elsewhere(line) for block in blocks_of(page) if block.language == "sh"
            for line in commands_of(block))
]  # fmt: skip


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if page.name in RUN_EACH_MERGE else pytest.mark.nightly)
        for page in PAGES_TO_RUN
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_commands_of_the_page_run(page: Path, world: World) -> None:
    asyncio.run(leave_receiver(world, halted=page.name in HALTED))
    shell = Shell(world)
    try:
        for _ in range(3 if page.name in LED else 0):
            code, said = shell.run(
                world.here("chainctl sequence --chain 1 --standby --intake-topic orders")
            )
            assert code == 0, said
        lines = [(block, line) for block in blocks_of(page) for line in commands_of(block)
                 if block.language == "sh"]  # fmt: skip
        for block, line in lines:
            if elsewhere(line) is None:
                if line.startswith("curl ") and shutil.which("curl") is None:
                    pytest.skip("no curl (Debian: apt-get install curl)")
                code, said = shell.run(world.here(line))
                assert code == expected(page, line), f"{block}: {line}\n{said}"
    finally:
        ended = shell.close()
    # Stopped in good order; of the leaders of a drill, some were asked to end, or fenced.
    assert set(ended) <= {143} | ({0, 3} if page.name in LED else set())


def expected(page: Path, line: str) -> int:
    for (name, begin), code in FINDS.items():
        if page.name == name and f"chainctl {begin}" in line:
            return code
    return 0


async def leave_receiver(world: World, *, halted: bool) -> None:
    """Leave the receiver `matching` at the head, perhaps halted."""
    at, _, seal = world.seal.partition(":")
    config = CheckpointConfig(
        database=world.settings["CHAINCTL_DATABASE"], chain_id=world.chain, name="matching"
    )
    async with PostgresCheckpointStore(config) as store:
        place = Mark(id=int(at), batch_last_id=int(at), seal=bytes.fromhex(seal), epoch=1)
        await store.save(0, place)
        if halted:
            await store.record_halt(PrimaryBehind(world.chain, int(at), int(at) + 1), int(at) + 1)


SQL_BLOCKS: Final = [
    block for page in PAGES for block in blocks_of(page) if block.language == "sql"
]


@pytest.mark.parametrize("block", SQL_BLOCKS, ids=str)
def test_sql_of_the_page_is_taken(
    block: Block, postgres_server: PostgresServer, database_with: Callable[..., str]
) -> None:
    name = database_with("chain", "outbox", "inbox")

    async def run() -> None:
        connection = await asyncpg.connect(postgres_server.dsn(SUPERUSER, name))
        transaction = connection.transaction()
        await transaction.start()  # roles are the whole server's
        try:
            await connection.execute("SELECT chain_create(7, sha256(''), 'orderchain.7', 0, 1000)")
            text = block.text.replace("DATABASE orders ", f"DATABASE {name} ")
            assert await connection.execute(text), "the word for its last statement"
        finally:
            await transaction.rollback()
            await connection.close()

    asyncio.run(run())
