"""A runbook as a test follows it: it runs the commands of the page, each of them at least once."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from chain_kernel.sql import GAP_READER
from local_stack.postgres import SUPERUSER
from tests.builders.orders import order_file
from tests.builders.topics import make_topics, send_records
from tests.command_lines import blocks, command_lines, refusal_of
from tests.deadlines import Deadline
from tests.opened import connected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from local_stack import KafkaServer, PostgresServer
    from tests.command_call import Done
    from tests.integration.chainctl.conftest import Call

BATCH_ROWS = 10
ARCHIVE = "/var/lib/orderchain-archive"
"""The folder of the archive, as the pages have it."""
RUNBOOKS = Path(__file__).parents[3] / "docs" / "runbooks"


def commands_of(page: str) -> list[list[str]]:
    """The whole commands of a page, in blocks and in sentences, each once."""
    inline = re.findall(r"`(chainctl [^`]*)`", page)
    found = [words for text in (*blocks(page), *inline) for words in command_lines(text)]
    whole = [words for words in found if "..." not in words and refusal_of(words) is None]
    return [words for at, words in enumerate(whole) if words not in whole[:at]]


class Runbook:
    """One page. Its samples (ids, names, folders) are replaced by what the test has."""

    def __init__(
        self, name: str, call: Call, settings: Mapping[str, str],
        samples: Mapping[str, object],
    ) -> None:  # fmt: skip
        self._name = name
        self._call = call
        self.settings = dict(settings)
        self._commands = commands_of((RUNBOOKS / f"{name}.md").read_text(encoding="utf-8"))
        self._samples = {sample: str(value) for sample, value in samples.items()}
        self._run: list[list[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            left = [" ".join(words) for words in self._commands if words not in self._run]
            assert not left, f"commands of {self._name} that the test has not run: {left}"

    def replace(self, samples: Mapping[str, object]) -> None:
        """Replace further samples, once the test knows them."""
        self._samples |= {sample: str(value) for sample, value in samples.items()}

    def words(self, beginning: str, *, dry_run: bool = False) -> list[str]:
        """Return the command of the page that is, or begins, like this; the one that only tries,
        or the one that acts.
        """
        known = {
            " ".join(words): words for words in self._commands if ("--dry-run" in words) == dry_run
        }
        found = [words for text, words in known.items() if text.startswith(beginning)]
        words = known.get(beginning) or (found[0] if found else None)
        assert words is not None, f"{self._name} has no command {beginning!r}, but {list(known)}"
        self._run.append(words)
        return [self._word(word) for word in words]

    def _word(self, word: str) -> str:
        for sample, value in self._samples.items():
            if word == sample:
                return value
            if sample.startswith("/"):
                word = word.replace(sample, value)
        return word

    def run(self, beginning: str, *more: object, code: int = 0, dry_run: bool = False) -> Done:
        """Run a command of the page, which ends with `code`."""
        words = self.words(beginning, dry_run=dry_run)
        done = self._call(*words, *more, settings=self.settings)
        assert done.code == code, (words, done)
        return done

    def json(self, beginning: str, *more: object, code: int = 0, dry_run: bool = False) -> Any:
        """Run a command of the page, for what a program reads of it."""
        return json.loads(self.run(beginning, *more, "--json", code=code, dry_run=dry_run).out)

    def run_once(self, refusal: str, beginning: str) -> Done:
        """Run a command of the page again for as long as it is refused like that."""
        bound = Deadline()
        words = self.words(beginning)
        while refusal in (done := self._call(*words, settings=self.settings)).err:
            assert bound.left() > 0, (words, done)
        assert done.code == 0, (words, done)
        return done

    def until(self, beginning: str, is_so: Callable[[Any], object]) -> Any:
        """Run a command of the page until it shows what is waited for, and return that.

        Whatever its exit code is until then.
        """
        bound = Deadline()
        words = self.words(beginning)
        while True:
            done = self._call(*words, "--json", settings=self.settings)
            found = json.loads(done.out) if done.code in (0, 1) else None
            if found is not None and is_so(found):
                return found
            assert bound.left() > 0, (beginning, done)


def sql(dsn: str, *statements: str) -> list[Any]:
    """Make a state as only an owner can, and return what the last statement finds."""

    async def run() -> list[Any]:
        async with connected(dsn) as connection:
            for statement in statements[:-1]:
                await connection.execute(statement)
            return [tuple(row) for row in await connection.fetch(statements[-1])]

    return asyncio.run(run())


def settings_of(server: PostgresServer, database: str, kafka: KafkaServer) -> dict[str, str]:
    """The settings of commands over a database and a Kafka, with a short lease."""
    return {
        "CHAINCTL_DATABASE": server.dsn(SUPERUSER, database),
        "CHAINCTL_GAP_DATABASE": server.dsn(GAP_READER, database),
        "CHAINCTL_KAFKA": kafka.bootstrap,
        "CHAINCTL_LEASE_SECONDS": "2",
    }


class World:
    """The chain 1, and what services around it do."""

    def __init__(self, call: Call, settings: dict[str, str], suffix: str, folder: Path) -> None:
        self.call = call
        self.settings = settings
        self.folder = folder
        self.topic = f"chain-{suffix}"
        self.orders = f"orders-{suffix}"
        self._files = 0

    def must(self, *arguments: object) -> None:
        done = self.call(*arguments, settings=self.settings)
        assert done.code == 0, (arguments, done)

    def create(self, *options: object) -> None:
        self.must("chain", "create", 1, "--topic", self.topic, *options)

    def sequence(self, rows: int) -> int:
        """Commit so many orders, in small batches, and return the head."""
        self.must(*self.sequence_of(rows))
        return self.head()

    def sequence_of(self, rows: int) -> tuple[object, ...]:
        """Return the command that does so."""
        self._files += 1
        path = order_file(self.folder / f"o{self._files}.csv", rows)
        return ("sequence", "--chain", 1, "--input", path, "--batch-rows", BATCH_ROWS)

    def head(self) -> int:
        return int(self.sql("SELECT last_id FROM chain_head")[0][0])

    def ends(self) -> list[int]:
        """The last ids of all batches."""
        return [last for (last,) in self.sql("SELECT last_id FROM chain_batch ORDER BY last_id")]

    def sql(self, *statements: str) -> list[Any]:
        return sql(self.settings["CHAINCTL_DATABASE"], *statements)

    def send(self, *values: bytes | None, key: str | None = None) -> None:
        """Send records to the topic of orders."""
        kafka = self.settings["CHAINCTL_KAFKA"]
        asyncio.run(
            send_records(kafka, self.orders, *values, key=None if key is None else key.encode())
        )

    def make_orders(self) -> None:
        asyncio.run(make_topics(self.settings["CHAINCTL_KAFKA"], self.orders))
