from pathlib import Path

import pytest

from tests.certificates import Authority


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="session")
def authority(certificates: Path) -> Authority:
    return Authority(certificates)
