"""What people who embed the outbox may rely on."""

from __future__ import annotations

import inspect

import pytest

import outbox


def test_public_names_are_these() -> None:
    assert sorted(outbox.__all__) == [
        "BadRecord",
        "BusinessTransaction",
        "Change",
        "Confirm",
        "ConsumeStart",
        "Consumer",
        "ConsumerConfig",
        "ConsumerStats",
        "Delivery",
        "Destination",
        "DestinationMissing",
        "FireAfterCommit",
        "InboxLog",
        "KeepConfig",
        "MemoryFilter",
        "Message",
        "MessageError",
        "NoFilter",
        "OutboxFull",
        "PartEnded",
        "Progress",
        "RedisFilter",
        "RedisFilterConfig",
        "Refused",
        "Relay",
        "RelayConfig",
        "RetryLevels",
        "StartFrom",
        "Status",
        "TransitionRefused",
        "UpkeepReport",
        "add",
        "add_many",
        "change_destination",
        "create_destination_topics",
        "draw_message_ids",
        "keep_outbox",
        "move_start",
        "save_destinations",
    ]
    assert all(hasattr(outbox, name) for name in outbox.__all__)


@pytest.mark.parametrize("name", outbox.__all__)
def test_public_name_says_what_it_is(name: str) -> None:
    thing = getattr(outbox, name)
    # A class without one shows its parent's.
    said = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
    assert said
    assert said.strip()


@pytest.mark.parametrize("name", ["Consumer", "FireAfterCommit", "MemoryFilter", "Relay"])
def test_public_methods_say_what_they_do(name: str) -> None:
    methods = inspect.getmembers(getattr(outbox, name), inspect.isfunction)
    bare = [each for each, method in methods if not each.startswith("_") and not method.__doc__]
    assert bare == []
