"""`verify --follow`: reports each fault of a topic as its frame arrives."""

from __future__ import annotations

import signal
import sys
from threading import Event
from typing import TYPE_CHECKING, NoReturn

from chainctl.output import data, data_json_line
from orderchain.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chain_verifier.config import ContradictedMark, Source
    from chain_verifier.findings import Finding


def require_alone(given: Mapping[str, bool]) -> None:
    """Refuse the first option of `given` that is set: only a verification that ends takes it.

    Raises SettingError.
    """
    for option, is_given in given.items():
        if is_given:
            raise SettingError(option, "together with --follow", "a verification that ends")


def follow(
    sources: Sequence[Source],
    chain_id: int,
    checkpoint: str | None,
    master: str | None,
    contradicted: ContradictedMark | None,
    *,
    as_json: bool,
) -> NoReturn:
    """Follow the topic among `sources`, compared with the database among them, until Ctrl-C.

    A verified mark that is `contradicted` is reported first, at every start as long as it lasts.
    Ends with KeyboardInterrupt, or with the error that broke it off. Raises SettingError for other
    sources, or without a folder for the checkpoint.
    """
    from chain_verifier.config import DatabaseSource, TopicSource
    from chain_verifier.follow.query import Follower
    from chain_verifier.request_check import local_folder
    from chain_verifier.spark.session import open_session
    from chain_verifier.verification import mark_finding

    topics = [source for source in sources if isinstance(source, TopicSource)]
    databases = [source for source in sources if isinstance(source, DatabaseSource)]
    if (len(topics), len(databases), len(sources)) != (1, 1, 2):
        names = ", ".join(source.name for source in sources)
        raise SettingError("--follow", names, "the sources database and topic")
    if checkpoint is None:
        raise SettingError("--checkpoint", None, "a folder that keeps how far the follower is")

    def tell(finding: Finding) -> None:
        if as_json:
            data_json_line(finding)
        else:
            data(f"{finding.source}: {finding.text}")
        # A live reader must not wait for a buffer to fill.
        if sys.stdout is not None:
            sys.stdout.flush()

    if contradicted is not None:
        tell(mark_finding(databases[0].name, contradicted))
    with open_session(master, kafka=True) as spark:
        follower = Follower(
            spark, topics[0], databases[0], chain_id, local_folder("--checkpoint", checkpoint), tell
        )
        stop = Event()
        usual = signal.signal(signal.SIGINT, lambda *_: stop.set())
        try:
            follower.run(stop)
        finally:
            signal.signal(signal.SIGINT, usual)
    raise KeyboardInterrupt
