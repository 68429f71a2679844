"""Three brokers that are one cluster: each is controller, too, and two of them decide."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from local_stack import KafkaServer, KafkaServerConfig
from local_stack.process import LOOPBACK, free_port

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
COPIES = 3


class Brokers:
    """The same as one server, as far as stories use one."""

    def __init__(self, brokers: list[KafkaServer]) -> None:
        self.brokers = brokers

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        """Start those that do not run: no broker is ready before two of the three are there."""
        for broker in self.brokers:
            if not broker.is_running():
                broker.launch()
        for broker in self.brokers:
            broker.start()

    def freeze(self) -> None:
        for broker in self.brokers:
            broker.freeze()

    def thaw(self) -> None:
        for broker in self.brokers:
            broker.thaw()

    def kill(self) -> None:
        for broker in self.brokers:
            broker.kill()


Kafka = KafkaServer | Brokers


def copies_of(kafka: Kafka) -> int:
    return COPIES if isinstance(kafka, Brokers) else 1


@contextmanager
def brokers_in(folder: Path) -> Iterator[Brokers]:
    """Run three brokers with folders below `folder`."""
    ports: list[int] = []
    for _ in range(2 * COPIES):
        ports.append(free_port(ports))
    voters = ",".join(f"{n + 1}@{LOOPBACK}:{ports[2 * n + 1]}" for n in range(COPIES))
    with ExitStack() as stack:
        stack.enter_context(patch("local_stack.kafka._new_cluster_id", lambda: CLUSTER_ID))
        brokers = Brokers([_broker(folder, n, ports, voters) for n in range(COPIES)])
        for broker in brokers.brokers:
            stack.callback(broker.stop)
        brokers.start()
        yield brokers


def _broker(folder: Path, number: int, ports: list[int], voters: str) -> KafkaServer:
    copies = str(COPIES)
    config = KafkaServerConfig(
        directory=folder / f"broker-{number + 1}",
        port=ports[2 * number],
        controller_port=ports[2 * number + 1],
        heap_mb=256,
        is_long_run=False,
        settings={
            "node.id": str(number + 1),
            "controller.quorum.voters": voters,
            "offsets.topic.replication.factor": copies,
            "min.insync.replicas": "2",
        },
    )
    return KafkaServer(config)
