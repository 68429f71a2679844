"""Following a real topic: what each frame shows is reported once, across restarts too."""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partialmethod
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from chain_kernel.errors import SettingError
from chain_kernel.sql import AUDITOR
from chain_verifier.config import ContradictedMark, DatabaseSource
from chain_verifier.findings import Finding, Kind
from chain_verifier.spark.follow import Follower
from chainctl.commands.verifier.verify import follow as follow_topic
from tests.integration.chain_verifier.conftest import MakeFollower, MakeFrames
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, chain_of, head_of, id_of
from tests.integration.chain_verifier.published_frames import Topic, frame_of
from tests.integration.chain_verifier.stored_rows import archive

Follow = Callable[[], list[Finding]]

ROWS = chain_of(random.Random(19), 60)
HEAD = head_of(ROWS)


@pytest.fixture
def frames(make_frames: MakeFrames) -> list[bytes]:
    return make_frames(ROWS)


@pytest.fixture
def follow(make_follower: MakeFollower) -> Follow:
    """Follows the topic to its present end with a fresh follower on the same folder."""

    def run() -> list[Finding]:
        shown: list[Finding] = []
        make_follower(shown.append).run(until_end=True)
        return shown

    return run


@pytest.mark.nightly
def test_follower_reports_each_fault_once_and_goes_on_after_a_restart(
    topic: Topic, frames: list[bytes], follow: Follow
) -> None:
    topic.send(*frames[:2])
    assert follow() == []
    changed = [replace(ROWS[40], key="other"), *ROWS[41:50]]
    foreign = replace(ROWS[0], id=HEAD + 10**6, pid=HEAD)
    topic.send(frames[1], frames[3], b"{}", frame_of(changed), frame_of([foreign]), *frames[4:])
    shown = {(one.kind, one.id, one.after_id, one.until_id) for one in follow()}
    assert shown == {
        (Kind.GAP, None, ROWS[19].id, ROWS[29].id),
        (Kind.DIFFERING, ROWS[40].id, None, None),
        (Kind.SURPLUS, HEAD + 10**6, None, None),
    }
    # Nothing is reported twice, and the lost frame that arrives now is.
    topic.send(frames[2])
    assert [(one.kind, one.id) for one in follow()] == [(Kind.OUT_OF_ORDER, ROWS[20].id)]


@pytest.mark.nightly
def test_follower_of_a_topic_that_still_has_archived_rows_finds_nothing_in_them(
    topic: Topic, frames: list[bytes], follow: Follow, database: str
) -> None:
    asyncio.run(archive(database, id_of(ROWS[19])))
    topic.send(*frames)
    assert follow() == []
    foreign = replace(ROWS[3], key="other")
    topic.send(frame_of([foreign], bytes(32)))
    assert [(one.kind, one.id) for one in follow()] == [(Kind.SURPLUS, ROWS[3].id)]


@pytest.mark.nightly
def test_follower_finds_nothing_in_rows_that_are_archived_while_it_follows(
    topic: Topic, frames: list[bytes], make_follower: MakeFollower, follow: Follow, database: str
) -> None:
    topic.send(frames[0])
    assert follow() == []
    shown: list[Finding] = []
    follower = make_follower(shown.append)
    asyncio.run(archive(database, id_of(ROWS[29])))
    topic.send(*frames[1:])
    follower.run(until_end=True)
    assert shown == []


def test_follow_reports_a_contradicted_mark_before_it_looks_at_the_topic(
    spark: SparkSession,
    topic: Topic,
    frames: list[bytes],
    role_dsn: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic.send(*frames[:2], *frames[3:])
    to_end = partialmethod(Follower.run, until_end=True)
    monkeypatch.setattr(Follower, "run", to_end)
    mark = ContradictedMark(
        mark_id=3, after_id=5, until_id=HEAD, seal=b"s" * 32, found=b"t" * 32, verified_by="eve",
        verified_at=datetime(2026, 1, 2, tzinfo=UTC), count=1,
    )  # fmt: skip
    sources = (
        topic.source,
        DatabaseSource(database=role_dsn(AUDITOR)),
    )
    with pytest.raises(KeyboardInterrupt):
        follow_topic(
            sources, CHAIN_ID, str(tmp_path / "follower"), None, mark, http=None, as_json=False
        )
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"database: contradicted mark: the rows after 5 up to {HEAD} are not")
    assert f"order {ROWS[29].id} is missing" in second
    with pytest.raises(SettingError, match="a URL that can be used"):
        follow_topic(sources, CHAIN_ID, "ssh://bucket/x", None, None, http=None, as_json=False)
