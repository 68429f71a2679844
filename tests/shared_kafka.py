"""One Kafka for all processes of a run: the first that asks starts it, the run's own process stops
it.

A Kafka of its own cost each process 4 s of CPU and 500 MB. Topics have names of their own in each
test, so tests side by side do not see each other's.
"""

import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from local_stack import KafkaServer, KafkaServerConfig
from local_stack.process import ProcessIdentity, free_port
from orderchain.pytest_plugin import make_server_folder

_FOLDER = pytest.StashKey[Path]()
_INPUT = "kafka_folder"


class _Started(msgspec.Struct, frozen=True):
    config: KafkaServerConfig
    process: ProcessIdentity


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give each process of the run the folder of its Kafka."""
    folder = node.config.stash.setdefault(_FOLDER, None) or make_server_folder()
    node.config.stash[_FOLDER] = folder
    node.workerinput[_INPUT] = str(folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the Kafka of the run, which all its processes have left."""
    folder = config.stash.get(_FOLDER, None)
    if folder is not None:
        if (started := _started(folder)) is not None:
            started.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def orderchain_kafka(pytestconfig: pytest.Config, orderchain_folder: Path) -> Iterator[KafkaServer]:
    """The Kafka of the whole run."""
    of_run = getattr(pytestconfig, "workerinput", {}).get(_INPUT)
    if of_run is not None:
        yield _first_starts(Path(of_run))
        return
    server = _first_starts(orderchain_folder)
    yield server
    server.stop()


def _first_starts(folder: Path) -> KafkaServer:
    with (folder / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = _started(folder) or _new(folder)
        server.start()
        return server


def _started(folder: Path) -> KafkaServer | None:
    try:
        content = (folder / "kafka.json").read_bytes()
    except FileNotFoundError:
        return None
    found = msgspec.json.decode(content, type=_Started, dec_hook=lambda kind, text: kind(text))
    return KafkaServer(found.config, process=found.process)


def _new(folder: Path) -> KafkaServer:
    port = free_port()
    config = KafkaServerConfig(
        directory=folder / "kafka", port=port, controller_port=free_port([port]), is_long_run=False
    )

    def note(process: ProcessIdentity) -> None:
        content = msgspec.json.encode(_Started(config, process), enc_hook=str)
        (folder / "kafka.json").write_bytes(content)

    return KafkaServer(config, on_launch=note)
