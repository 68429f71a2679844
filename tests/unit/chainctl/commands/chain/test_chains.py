import pytest

from chain_kernel.errors import SettingError
from chainctl.topics import check_topic_name


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "a" * 250, "a\n"])
def test_topic_name_that_kafka_refuses_is_refused_before_it_is_asked(name: str) -> None:
    with pytest.raises(SettingError, match="topic was") as refused:
        check_topic_name(name)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("name", ["orderchain.1", "a" * 249, "A_b-c"])
def test_topic_name_that_kafka_takes_is_taken(name: str) -> None:
    assert check_topic_name(name) == name
