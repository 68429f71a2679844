"""The same config in the words of librdkafka."""

import pytest

from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.options import librdkafka_options
from chain_kernel.errors import SettingError


def test_token_function_is_refused_for_drivers_that_cannot_call_it() -> None:
    async def draw() -> str:
        return "Tr0ub4dor"

    config = KafkaConfig(
        bootstrap_servers="a:1",
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_token=draw,
    )
    with pytest.raises(SettingError, match="cannot call sasl_token"):
        librdkafka_options(config)
