import sys

import pytest

from chain_kernel import speed
from chain_kernel.errors import SettingError


def test_python_runs_where_it_is_chosen_and_where_nothing_else_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert speed.load("python") is None
    monkeypatch.setitem(sys.modules, "orderchain_speed", None)
    assert speed.load(None) is None
    with pytest.raises(SettingError, match="orderchain-speed to be installed"):
        speed.load("native")


def test_another_choice_is_refused() -> None:
    with pytest.raises(SettingError, match="ORDERCHAIN_IMPL was 'rust', expected python or native"):
        speed.load("rust")
