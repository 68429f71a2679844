"""What a config does with the values it is given."""

import math
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.config import Config
from chain_kernel.errors import SettingError


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(Config, frozen=True, kw_only=True):
    pause_seconds: Annotated[float, Meta(gt=0, le=60)] = 1.0


class Outer(Config, frozen=True, kw_only=True):
    chain_id: Annotated[int, Meta(ge=1, le=9)]
    linger_seconds: Annotated[float, Meta(ge=0, le=1)] = 0.0
    database: Annotated[str, Meta(max_length=300)] = ""
    databases: tuple[str, ...] = ()
    kafka: str | KafkaConfig | None = None
    kind: Literal["sync", "lazy"] | None = None
    colour: Colour = Colour.RED
    is_unsafe: bool = False
    inner: Inner = Inner()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chain_id == 9 and self.is_unsafe:
            raise SettingError("chain_id", 9, "one that is safe")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chain_id": 0}, "chain_id was 0, expected int >= 1"),
        ({"chain_id": True}, "chain_id was True, expected int"),
        ({"chain_id": "1"}, "chain_id was '1', expected int"),
        ({"linger_seconds": -3}, "linger_seconds was -3, expected float >= 0.0"),
        ({"linger_seconds": math.nan}, "linger_seconds was nan, expected float >= 0.0"),
        ({"is_unsafe": "false"}, "is_unsafe was 'false', expected bool"),
        ({"kind": "fast"}, "kind was 'fast', expected one of sync, lazy"),
        ({"colour": "red?"}, "colour was 'red?', expected one of red, blue"),
        ({"inner": 3}, "inner was 3, expected Inner"),
        ({"kafka": 9092}, "kafka was 9092, expected a text or KafkaConfig"),
        ({"kafka": ""}, "kafka was '', expected host:port"),
        ({"chain_id": 9, "is_unsafe": True}, "chain_id was 9, expected one that is safe"),
    ],
)
def test_unfit_value_is_refused_with_its_field(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        Outer(**{"chain_id": 1, **settings})  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("field", "secret"),
    [
        ("databases", "postgresql://me:sesame@db/x"),
        ("linger_seconds", "postgresql://me:sesame@db/x"),
        ("linger_seconds", "host=db password=sesame"),
        ("database", "postgresql://me:sesame@db/" + "x" * 300),
    ],
)
def test_value_that_may_hold_a_password_is_not_shown(field: str, secret: str) -> None:
    with pytest.raises(SettingError) as caught:
        Outer(chain_id=1, **{field: secret})  # type: ignore[arg-type]
    assert "sesame" not in str(caught.value)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (Outer, "chain_ids", "field of Outer was 'chain_ids', expected chain_id"),
        (Outer, "xyz", "field of Outer was 'xyz', expected one of "),
        (KafkaConfig, "sasl_pasword", "KafkaConfig was 'sasl_pasword', expected sasl_password"),
        (DatabaseConfig, "hosts", "field of DatabaseConfig was 'hosts', expected host"),
    ],
)
def test_unknown_field_is_refused_with_the_nearest(kind: Any, given: str, said: str) -> None:
    with pytest.raises(SettingError, match=said) as refused:
        kind(**{given: "a secret"})
    assert "a secret" not in str(refused.value)


def test_replaced_and_decoded_configs_are_checked_too() -> None:
    with pytest.raises(SettingError, match="chain_id was 0"):
        msgspec.structs.replace(Outer(chain_id=1), chain_id=0)
    with pytest.raises(SettingError, match="kafka was 'x'"):
        msgspec.json.decode(b'{"chain_id": 1, "kafka": "x"}', type=Outer)
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"chain_id": 1, "chain": 1}', type=Outer)
