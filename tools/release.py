"""Builds a release into dist/: wheel, sdist, bill of materials, hashes. It publishes nothing.

The version is that of the tag `vX.Y.Z` at the commit. `--version X.Y.Z` builds what that tag will
give, before it is made. The last line that it prints is the one command that publishes it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import resources
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT: Final = Path(__file__).parents[1]
TOOLS_EXTRAS: Final = {"bench", "dev", "docs", "fuzz", "release"}
"""The tools that the project is made with: no part of what its users install."""
RELEASE: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:(?:a|b|rc)[0-9]+)?")
BUILD_DEADLINE_S: Final = 300.0


class NotReady(Exception):
    """Something is missing before this can be released; the message names it."""


def run(*command: str | Path, cwd: Path = ROOT, environ: dict[str, str] | None = None) -> str:
    """Return what a command prints; one that fails is reported with what it said."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | (environ or {}),
        capture_output=True,
        text=True,
        timeout=BUILD_DEADLINE_S,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise NotReady(f"{' '.join(map(str, command))}: {said}")
    return done.stdout.strip()


# -- what must be true before -----------------------------------------------------------------


def version_of_tag() -> str:
    """Return the version that the commit's tag gives."""
    tags = run("git", "tag", "--points-at", "HEAD").split()
    versions = [tag[1:] for tag in tags if tag[:1] == "v" and RELEASE.fullmatch(tag[1:])]
    if len(versions) != 1:
        raise NotReady("the commit has no tag such as v0.1.0: make it, or give --version 0.1.0")
    return versions[0]


def check_tree(version: str) -> None:
    """Refuse a version that the files do not speak of, and files that are in no commit."""
    if not RELEASE.fullmatch(version):
        raise NotReady(f"the version is {version!r}, expected one such as 0.1.0")
    if changed := run("git", "status", "--porcelain"):
        raise NotReady(f"not committed: {', '.join(line[3:] for line in changed.splitlines())}")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)}$", changelog, re.MULTILINE):
        raise NotReady(f"CHANGELOG.md has no section '## {version}'")
    for path in sorted((ROOT / "deploy").rglob("*")):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            for image in re.findall(r"\borderchain:([0-9][\w.]*)", text):
                if image != version:
                    raise NotReady(f"{path.relative_to(ROOT)} names the image orderchain:{image}")


# -- build ------------------------------------------------------------------------------------


def build(source: Path, into: Path, version: str, *kinds: str) -> list[Path]:
    """Build from a folder; the time in the files is that of the commit."""
    environ = {
        "SETUPTOOLS_SCM_PRETEND_VERSION": version,
        "SOURCE_DATE_EPOCH": run("git", "log", "-1", "--format=%ct"),
    }
    targets = [word for kind in kinds for word in ("-t", kind)]
    command = [sys.executable, "-m", "hatchling", "build", *targets, "-d", str(into)]
    run(*command, cwd=source, environ=environ)
    return sorted(into.iterdir())


def build_twice(into: Path, version: str) -> list[Path]:
    """Build both files, then the wheel a second time from the sdist alone: the bytes are equal."""
    sdist, wheel = sorted(
        build(ROOT, into, version, "sdist", "wheel"), key=lambda path: path.suffix == ".whl"
    )
    with tempfile.TemporaryDirectory() as temporary:
        run("tar", "-xzf", sdist, "-C", temporary)
        (source,) = Path(temporary).iterdir()
        (second,) = build(source, Path(temporary) / "second", version, "wheel")
        if second.read_bytes() != wheel.read_bytes():
            raise NotReady(f"{wheel.name} is another one when it is built from {sdist.name}")
    return [wheel, sdist]


# -- bill of materials ------------------------------------------------------------------------


def requirements_of(found: Distribution, extras: Iterable[str] = ()) -> dict[str, set[str]]:
    """Return what is installed with `found` and its `extras`: by name, what each asks for itself.

    The first name is that of `found`. Markers are read for this interpreter and this system.
    """
    own = canonicalize_name(found.metadata["Name"])
    asked: dict[str, set[str]] = {own: set()}
    seen: set[tuple[str, str]] = set()
    waiting = [(own, found, extra) for extra in {"", *extras}]
    while waiting:
        name, current, extra = waiting.pop()
        for requirement in map(Requirement, current.requires or []):
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            needed = canonicalize_name(requirement.name)
            if needed != name:
                asked[name].add(needed)
                asked.setdefault(needed, set())
            for more in {"", *requirement.extras}:
                if (needed, more) not in seen:
                    seen.add((needed, more))
                    source = found if needed == own else distribution(needed)
                    waiting.append((needed, source, more))
    return asked


def needs_of_users(wheel: Path) -> dict[str, set[str]]:
    """Return what the wheel brings along with all extras that are for its users."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        (metadata,) = Path(folder).glob("*.dist-info")
        found = Distribution.at(metadata)
        extras = set(found.metadata.get_all("Provides-Extra", [])) - TOOLS_EXTRAS
        return requirements_of(found, extras)


def bill_of_materials(wheel: Path, version: str) -> dict[str, Any]:
    """Return what users of the wheel install, as CycloneDX: packages, licences, Kafka's jars."""
    text = run(
        *(sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", "pyproject.toml"),
        *("--mc-type", "library", "--output-reproducible", "--of", "JSON", "--no-validate"),
    )
    bill: dict[str, Any] = json.loads(text)
    root = bill["metadata"]["component"] | {
        "version": version,
        "purl": f"pkg:pypi/orderchain@{version}",
        "hashes": [{"alg": "SHA-256", "content": sha256(wheel)}],
    }
    needs = needs_of_users(wheel)
    found = {str(canonicalize_name(each["name"])): each for each in bill["components"]}
    kept = {name: found[name] for name in needs if name != "orderchain"}
    refs = {name: each["bom-ref"] for name, each in kept.items()}
    bill["metadata"]["component"] = root
    bill["components"] = [*(kept[name] for name in sorted(kept)), *map(jar_component, kafka_lock())]
    for each in bill["components"]:
        each.pop("externalReferences", None)  # home pages: of no use, and half of the file
        if not each.get("licenses") and "group" not in each:  # one in words of its own
            each["licenses"] = [
                {"license": {"name": distribution(each["name"]).metadata["License"]}}
            ]
    bill["dependencies"] = [
        {
            "ref": refs.get(name, root["bom-ref"]),
            "dependsOn": sorted(refs[each] for each in asked),
        }
        for name, asked in sorted(needs.items())
    ]
    # Imported here: its import builds grammars for two seconds, in each process that tests this.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    if refused := JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill)):
        raise NotReady(f"the bill of materials: {refused}")
    return bill


def kafka_lock() -> list[list[str]]:
    """Return coordinate and hash of each jar that the local stack fetches."""
    text = resources.files("local_stack").joinpath("kafka.lock").read_text(encoding="utf-8")
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


def jar_component(locked: list[str]) -> dict[str, Any]:
    """Return a jar as a component."""
    coordinate, digest = locked
    group, name, version = coordinate.split(":")
    return {
        "bom-ref": f"maven:{coordinate}",
        "type": "library",
        "group": group,
        "name": name,
        "version": version,
        "purl": f"pkg:maven/{group}/{name}@{version}",
        "hashes": [{"alg": "SHA-256", "content": digest}],
        "scope": "optional",
    }


def sha256(path: Path) -> str:
    """Return the hash of a file, as text."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -- the whole --------------------------------------------------------------------------------


def release(into: Path, version: str) -> list[Path]:
    """Make `into` again, with all files of the release."""
    check_tree(version)
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    built = build_twice(into, version)
    bill = into / f"orderchain-{version}.cdx.json"
    text = json.dumps(bill_of_materials(built[0], version), indent=1, sort_keys=True)
    bill.write_text(text + "\n", encoding="utf-8")
    files = [*built, bill]
    sums = into / "SHA256SUMS"
    sums.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files), encoding="utf-8")
    return [*files, sums]


def publish_command(built: list[Path], version: str, *, tagged: bool) -> str:
    """Return the command that makes the version public."""
    files = " ".join(str(path) for path in built if path.suffix in (".whl", ".gz"))
    upload = f"{Path(sys.executable).parent}/uv publish {files}"
    if tagged:
        return upload
    return f"git tag -s v{version} -m {version} && git push origin v{version} && {upload}"


def main() -> int:
    """Build, list the files, and print the command that publishes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", help="the version that a tag will give, such as 0.1.0")
    parser.add_argument("--into", type=Path, default=Path("dist"), metavar="FOLDER")
    given = parser.parse_args()
    try:
        version = given.version or version_of_tag()
        files = release(given.into.absolute(), version)
    except NotReady as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    for path in files:
        print(f"{sha256(path)}  {path}", file=sys.stderr)
    tagged = given.version is None
    print("Publish it (UV_PUBLISH_TOKEN holds the token of the index):", file=sys.stderr)
    print(publish_command(files, version, tagged=tagged))
    return 0


if __name__ == "__main__":
    sys.exit(main())
