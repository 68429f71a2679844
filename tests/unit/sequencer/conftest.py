import pytest

from .builders import World


@pytest.fixture
def world() -> World:
    return World()
