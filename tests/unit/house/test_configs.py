"""Every config of the house checks itself, field by field, however it is made."""

import ast
import typing
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
from msgspec import Meta

from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.config import Config
from chain_kernel.errors import SettingError
from outbox import RelayConfig
from tests.sources import PRODUCT, modules

CHECKED_BY_THEMSELVES = {"KafkaConfig", "DatabaseConfig"}
"""Their fields depend on each other throughout, and some hold secrets: tests/unit/chain_kernel."""
NOT_SETTINGS = {"SessionConfig"}
"""Made by code of ours alone, of settings that were checked."""

GOOD: dict[str, object] = {
    "chain_id": 1,
    "check_topic": "checks",
    "confirm_topics": ("confirms",),
    "consumer": "clearing",
    "consumers": ("clearing",),
    "database": "postgresql://db/x",
    "id": 1,
    "kafka": "broker:9092",
    "name": "clearing",
    "path": "journal.jsonl",
    "relay": RelayConfig(database="postgresql://db/x", kafka="broker:9092"),
    "seal": b"s" * 32,
    "sender": "trading",
    "sources": (),
    "token_sha256": ("0" * 64,),
    "topic": "orders",
    "topics": ("orders",),
    "url": "redis://cache:6379",
}
"""A value for each field that has no default, in whatever config."""


OTHER_WORDS = {"bootstrap_servers", "servers", "dsn", "receiver", "leader", "chain"}
"""What has another name in every config."""


def classes() -> Iterator[tuple[str, str, set[str]]]:
    """Yield module, name and bases of each class of the product."""
    for module in modules(*PRODUCT):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                yield module.import_name, node.name, bases


CLASSES = list(classes())


def all_configs() -> list[type[Config]]:
    """Return every class whose bases lead to Config, whichever package it is in."""
    names = {"Config"}
    while more := {name for _, name, bases in CLASSES if bases & names} - names:
        names |= more
    return [
        getattr(import_module(module), name) for module, name, bases in CLASSES if bases & names
    ]


CONFIGS = all_configs()


def make(config: type[Config], **settings: object) -> Config:
    fields = msgspec.structs.fields(config)
    required = {field.name: GOOD[field.name] for field in fields if field.required}
    needed = dict[str, object]()
    if config.__name__ == "Destination":  # one that asks for confirms has to have consumers
        needed["consumers"] = GOOD["consumers"]
    if config.__name__ == "StartAt":
        needed["at"] = "end"
    if config.__name__ == "Moment":
        needed["id"] = 1
    return config(**{**required, **needed, **settings})


def parts_of(hint: Any) -> Iterator[tuple[Any, Meta]]:
    """Yield the types of a field, each with its bounds."""
    if get_origin(hint) is Annotated:
        kind, *metas = get_args(hint)
        for part, _ in parts_of(kind):
            yield part, next(meta for meta in metas if isinstance(meta, Meta))
    elif get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            yield from parts_of(part)
    else:
        yield hint, Meta()


def bad_values(hint: Any) -> Iterator[object]:
    yield object()
    kinds = {part if isinstance(part, type) else get_origin(part) for part, _ in parts_of(hint)}
    if str not in kinds and Literal not in kinds:
        yield "no such value"
    for kind, meta in parts_of(hint):
        if kind in (int, float):
            yield from bad_numbers(kind, meta)
        elif kind is bool:
            yield from ("false", 1, None)
        elif kind is str:
            if meta.min_length or KafkaConfig in kinds:
                yield ""
            if meta.max_length is not None:
                yield "x" * (meta.max_length + 1)
            if KafkaConfig in kinds:
                yield from ("broker", "broker:no", "a b:9092")
        elif get_origin(kind) is Literal:
            yield "no such choice"
        elif get_origin(kind) is tuple:
            yield (object(),)


def bad_numbers(kind: type, meta: Meta) -> Iterator[object]:
    yield from (True, "1")
    bounds = [(meta.ge, -1), (meta.le, 1), (meta.gt, 0), (meta.lt, 0)]
    yield from (bound + step for bound, step in bounds if bound is not None)
    if kind is float:
        yield from (float("nan"), float("inf"), -float("inf"))


def fields_of(config: type[Config]) -> dict[str, Any]:
    hints = typing.get_type_hints(config, include_extras=True)
    return {name: hints[name] for name in msgspec.structs.asdict(make(config))}


def test_every_config_of_the_house_checks_itself() -> None:
    unchecked = {
        name for _, name, bases in CLASSES if name.endswith("Config") and "Struct" in bases
    }
    assert unchecked == {"Config", *CHECKED_BY_THEMSELVES, *NOT_SETTINGS}
    assert len(CONFIGS) > 15


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_field_with_a_bad_value_is_refused_however_the_config_is_made(
    config: type[Config],
) -> None:
    good = make(config)
    for name, hint in fields_of(config).items():
        for bad in bad_values(hint):
            for construct in (
                partial(make, config, **{name: bad}),
                partial(msgspec.structs.replace, good, **{name: bad}),
            ):
                with pytest.raises(SettingError) as caught:
                    construct()
                assert caught.value.field in (name, "bootstrap_servers"), (name, bad)
                assert caught.value.expected, (name, bad)


def test_each_number_has_a_lower_bound_and_one_idea_has_one_keyword() -> None:
    for config in CONFIGS:
        for name, hint in fields_of(config).items():
            for kind, meta in parts_of(hint):
                is_bounded = meta.ge is not None or meta.gt is not None
                assert is_bounded or kind not in (int, float), (config, name)
            assert name not in {
                "bootstrap_servers",
                "servers",
                "dsn",
                "receiver",
                "leader",
                "chain",
            }
            assert not name.endswith(("_ms", "_s", "_hours", "_minutes", "_timeout")), name
