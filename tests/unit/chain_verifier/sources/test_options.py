"""Options of a reader that fit no source."""

import pytest

from chain_kernel.errors import SettingError
from chain_verifier.sources.options import ChainOptions

TOPIC = {"source": "topic", "chains": "1", "kafka": "h:1"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "url"),
        ({"source": "topic", "chains": "1"}, "kafka"),
        ({"source": "topic", "kafka": "h:1"}, "chains"),
        ({"source": "archive"}, "source"),
        ({"source": "archive:"}, "source"),
        ({"source": "database:x", "url": "postgresql://h/d"}, "source"),
        ({"source": "topic:", "chains": "1", "kafka": "h:1"}, "source"),
        ({"url": "postgresql://h/d", "until": "x"}, "until"),
        ({"url": "postgresql://h/d", "linked": "yes"}, "linked was 'yes', expected true or false"),
        (TOPIC | {"linked": "true"}, "linked was 'true', expected false"),
        (TOPIC | {"kafka.ssl_cafile": "/no"}, "ssl_cafile"),
    ],
)
def test_options_that_fit_no_source_are_refused(options: dict[str, str], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        ChainOptions.of(options)
