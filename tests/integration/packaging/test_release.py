"""A release, made from a copy of the repository with a tag of its own."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.programs import completed, output_of

ROOT = Path(__file__).parents[3]
VERSION = "9.8.7"
PERMISSIVE = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0",
    "PSF-2.0", "Unlicense", "Zlib", "Apache Software License", "BSD License",
    "3-Clause BSD License",
    # certifi: a list of certificates, used unchanged.
    "MPL-2.0", "Mozilla Public License 2.0 (MPL 2.0)",
}  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that the repository tracks, committed and tagged again, as a release of its own."""
    folder = tmp_path_factory.mktemp("release") / "project"
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for path in [folder / "CHANGELOG.md", *(folder / "deploy").rglob("*")]:
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            text = re.sub(r"(^## |\borderchain:)0\.1\.0", rf"\g<1>{VERSION}", text, flags=re.M)
            path.write_text(text, encoding="utf-8")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")
    git(folder, "tag", f"v{VERSION}")
    return folder


def git(folder: Path, *words: str) -> str:
    who = [f"GIT_{role}_{what}" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")]
    environment = os.environ | dict.fromkeys(who, "test")
    return output_of("git", "-c", "commit.gpgsign=false", *words, cwd=folder, env=environment)


def release(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(project)}
    return completed(sys.executable, "tools/release.py", *words, cwd=project, env=environment)


@pytest.fixture(scope="module")
def released(project: Path) -> tuple[Path, str]:
    """The folder of the release, and the command that would publish it."""
    done = release(project)
    assert done.returncode == 0, done.stderr
    return project / "dist", done.stdout


@pytest.mark.timeout(250)
def test_release_has_the_version_of_the_tag_and_one_command_publishes_it(
    released: tuple[Path, str],
) -> None:
    folder, command = released
    wheel, sdist = (f"orderchain-{VERSION}{end}" for end in ("-py3-none-any.whl", ".tar.gz"))
    assert {path.name for path in folder.iterdir()} == {
        wheel, sdist, f"orderchain-{VERSION}.cdx.json", "SHA256SUMS",
    }  # fmt: skip
    assert command.count("\n") == 1
    assert command.split()[1:] == ["publish", str(folder / wheel), str(folder / sdist)]
    with zipfile.ZipFile(folder / wheel) as archive:
        metadata = archive.read(f"orderchain-{VERSION}.dist-info/METADATA").decode()
    assert f"\nVersion: {VERSION}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata


def test_hashes_of_the_release_are_those_of_its_files(released: tuple[Path, str]) -> None:
    folder, _ = released
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    named = {name: digest for digest, name in (line.split() for line in lines)}
    assert named.keys() == {path.name for path in folder.iterdir()} - {"SHA256SUMS"}
    for name, digest in named.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


def test_bill_of_materials_names_what_users_install_with_licences_and_nothing_else(
    released: tuple[Path, str],
) -> None:
    folder, _ = released
    text = (folder / f"orderchain-{VERSION}.cdx.json").read_text(encoding="utf-8")
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", VERSION)
    packages = {each["name"].lower(): each for each in bill["components"] if "group" not in each}
    assert {"asyncpg", "aiokafka", "msgspec", "pyspark", "jgo", "click"} <= packages.keys()
    assert not {"pytest", "mypy", "ruff", "mkdocs", "orderchain"} & packages.keys()
    assert [name for name, each in packages.items() if not each.get("licenses")] == []
    jars = {each["name"]: each for each in bill["components"] if "group" in each}
    assert jars["kafka_2.13"]["hashes"][0]["alg"] == "SHA-256"
    known = {each["bom-ref"] for each in bill["components"]}
    needs = {each["ref"]: set(each["dependsOn"]) for each in bill["dependencies"]}
    assert all(refs <= known for refs in needs.values())
    asked = needs[bill["metadata"]["component"]["bom-ref"]]
    assert {"blake3", "redis"} <= {ref.partition("==")[0] for ref in asked}
    # Nothing of the machine that built it.
    assert str(Path.home()) not in text
    assert str(ROOT) not in text


def test_what_users_install_may_be_used_in_closed_software(released: tuple[Path, str]) -> None:
    folder, _ = released
    bill = json.loads((folder / f"orderchain-{VERSION}.cdx.json").read_text(encoding="utf-8"))
    for package in (each for each in bill["components"] if "group" not in each):
        for licence in package["licenses"]:
            text = licence.get("expression") or licence["license"].get("id")
            text = text or licence["license"]["name"].rpartition(" :: ")[2]
            named = {text} if text in PERMISSIVE else set(re.split(r" AND | OR |[()]", text))
            assert named <= PERMISSIVE, package["name"]


@pytest.mark.timeout(250)
def test_release_made_a_second_time_has_the_same_bytes(
    project: Path, released: tuple[Path, str], tmp_path: Path
) -> None:
    done = release(project, "--into", str(tmp_path / "second"))
    assert done.returncode == 0, done.stderr
    for path in released[0].iterdir():
        assert (tmp_path / "second" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("1.2.3", "CHANGELOG.md has no section '## 1.2.3'"),
        ("one", "the version is 'one', expected one such as 0.1.0"),
    ],
)
def test_release_of_a_version_that_the_files_do_not_speak_of_is_refused(
    project: Path, tmp_path: Path, version: str, said: str
) -> None:
    done = release(project, "--version", version, "--into", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"release: {said}\n"


def test_release_with_changes_that_are_in_no_commit_is_refused(
    project: Path, tmp_path: Path
) -> None:
    (project / "new.py").touch()
    done = release(project, "--into", str(tmp_path))
    (project / "new.py").unlink()
    assert done.returncode == 2
    assert done.stderr == "release: not committed: new.py\n"
