"""What the package asks for: bounds, tested versions, hashes."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.sources import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
OURS = {"orderchain", "orderchain-speed"}
"""Distributions of this repository: no version of them is pinned, and `make setup` builds both."""
PIN = re.compile(r"^([\w.-]+)==([\w.]+)", re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    found = PIN.findall((ROOT / name).read_text(encoding="utf-8"))
    return {canonicalize_name(package): version for package, version in found}


PINS = pins("constraints.txt")


def asked() -> list[Requirement]:
    texts = [*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)]
    return [each for each in map(Requirement, texts) if each.name not in OURS]


def test_each_requirement_takes_the_version_that_is_tested() -> None:
    for requirement in asked():
        version = PINS[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} and {version}"


def test_versions_with_hashes_are_those_that_are_tested() -> None:
    """`make hashes` writes them."""
    assert pins("constraints-hashed.txt") == PINS
    text = (ROOT / "constraints-hashed.txt").read_text(encoding="utf-8")
    blocks = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in block for block in blocks)


def test_each_extra_is_in_what_the_developers_install() -> None:
    """So that every extra is tested; `make fuzz` installs its own."""
    seen = {"dev", "speed", "fuzz"}
    waiting = ["dev"]
    while waiting:
        for requirement in map(Requirement, EXTRAS[waiting.pop()]):
            if requirement.name == "orderchain":
                waiting += requirement.extras - seen
                seen |= requirement.extras
    assert seen >= EXTRAS.keys()


def test_libraries_of_users_with_major_versions_have_an_upper_bound() -> None:
    """Those without one count by years or follow a rule of their own (pyarrow, cryptography)."""
    for extra in ("sequencer", "receiver", "outbox", "web", "monitoring", "cli", "stack"):
        for requirement in map(Requirement, EXTRAS[extra]):
            operators = {each.operator for each in requirement.specifier}
            assert requirement.name == "orderchain" or "<" in operators, requirement


def test_what_an_image_installs_is_a_part_of_what_is_tested() -> None:
    installed = pins("deploy/requirements.txt")
    assert installed.items() <= PINS.items()
    for extra in ("cli", "local", "sign", "web"):
        needed = {canonicalize_name(each.name) for each in map(Requirement, EXTRAS[extra])}
        assert needed - {"orderchain"} <= installed.keys()
