"""Doors: packages whose names are imported at their first use, and what an import lacks.

It imports nothing at first: a door asks it for each name.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_EXTRA = "orderchain_extra"
"""The attribute of an error that says which extra is missing."""


@contextmanager
def needs_extra(extra: str, door: str) -> Iterator[None]:
    """Have an import that lacks a package say in one line which extra installs it.

    Raises ModuleNotFoundError. Where blocks are nested, the outer one names what was asked for,
    and the inner one the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        extra = getattr(error, _EXTRA, extra)
        from chain_kernel.text import not_installed

        missing = (error.name or "").partition(".")[0]
        text = f"{door}: {not_installed(missing, extra)}"
        found = ModuleNotFoundError(text, name=error.name)
        setattr(found, _EXTRA, extra)
        raise found from None


def without_missing(names: list[str], lazy: Mapping[str, str], package: str) -> list[str]:
    """Return `names`, without those of `lazy` where `package` is missing: a star needs no extra."""
    is_there = find_spec(package) is not None
    return [name for name in names if is_there or name not in lazy]


def imported(
    door: str, name: str, module_of: Mapping[str, str], extra_of: Mapping[str, str]
) -> object:
    """Return what `name` of the package `door` stands for.

    `module_of` has the module of each name, `extra_of` the extra of each package that needs one.
    For `__all__` it is the names that can be imported here: a star needs no extra.
    Raises AttributeError, and ModuleNotFoundError where an extra is missing.
    """
    if name == "__all__":
        there = []
        for each in sorted(module_of):
            with suppress(ModuleNotFoundError):
                imported(door, each, module_of, extra_of)
                there.append(each)
        return there
    if name not in module_of:
        raise AttributeError(f"module {door!r} has no attribute {name!r}")
    module = module_of[name]
    extra = extra_of.get(module.partition(".")[0])
    if extra is None:
        found = import_module(module)
    else:
        with needs_extra(extra, f"{door}.{name}"):
            found = import_module(module)
    return getattr(found, name, None) or import_module(f"{module}.{name}")
