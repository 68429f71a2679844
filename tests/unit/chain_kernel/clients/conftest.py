from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="session")
def authority(certificates: Path) -> Authority:
    return Authority(certificates)
