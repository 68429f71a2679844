import pytest


@pytest.fixture(autouse=True)
def each_implementation(implementation: str) -> str:
    """Keys are known and refused alike, whichever functions run."""
    return implementation
