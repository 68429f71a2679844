import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain_kernel.model import split_client_key
from sequencer.keys.memory import KeyForms, forms_of

TEXTS = st.text(st.sampled_from("ab#0123456789\u0661 _+-"), min_size=1, max_size=6)
CLIENT_KEYS = st.builds("{}#{}".format, st.sampled_from(["a", "b", "c d"]), st.integers(0, 2**64))


def one_by_one(keys: list[str]) -> KeyForms | None:
    firsts: dict[str, int] = {}
    lasts: dict[str, tuple[int, int]] = {}
    free = []
    for at, split in enumerate(map(split_client_key, keys)):
        if split is None:
            free.append(at)
            continue
        client, number = split
        if client in lasts and number <= lasts[client][0]:
            return None
        firsts.setdefault(client, number)
        lasts[client] = (number, at)
    return KeyForms(free, firsts, lasts)


def shown(forms: KeyForms | None) -> KeyForms | None:
    return forms and KeyForms(list(forms.free), forms.firsts, forms.lasts)


@given(st.lists(st.one_of(TEXTS, CLIENT_KEYS), min_size=1, max_size=5))
def test_forms_of_many_are_those_of_each(keys: list[str]) -> None:
    assert shown(forms_of(keys)) == one_by_one(keys)


@pytest.mark.parametrize(
    "keys",
    [
        ["a#1", "b#2", "a#3"],
        ["a", "7#x#5"],  # as many separators as keys, but not one in each
        ["a#1", "b#01"],
        ["a#0"],
        ["#1", "a#2"],
        ["a#", "b#1"],
        [f"a#{2**63 - 1}", f"a#{2**63}"],
        ["a#1_0", "b#1"],
        ["a#\u0661", "b#1"],
        ["a", "b"],
    ],
)
def test_forms_of_keys_that_look_alike_are_those_of_each(keys: list[str]) -> None:
    assert shown(forms_of(keys)) == one_by_one(keys)
