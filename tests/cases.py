"""Many small cases in one test, which names the case that failed."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(name: object) -> Iterator[None]:
    """Add the name of the case to whatever is raised within the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {name}")
        raise
