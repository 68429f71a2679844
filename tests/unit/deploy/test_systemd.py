"""The units for systemd: complete, taken by systemd, and by the command line."""

import configparser
import re
import shutil
import sys
from pathlib import Path

import pytest

from chainctl.settings import SETTING_NAMES, load_settings, variable_of
from tests.command_lines import refusal_of
from tests.programs import completed

DEPLOY = Path(__file__).parents[3] / "deploy"
UNITS = DEPLOY / "systemd"
SERVICES = sorted(UNITS.glob("*.service"))
FOLDER = "/opt/orderchain/bin"

LIBPQ = {"PGPASSFILE", "PGSSLMODE", "PGSSLROOTCERT"}
OURS = {"CHAINCTL_CONFIG"} | {variable_of(name) for name in SETTING_NAMES}


class Unit(configparser.RawConfigParser):
    """A unit file: the same key may come several times, with all its values."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, delimiters=("=",), comment_prefixes=("#",))
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self.read_string(path.read_text(encoding="utf-8"))
        self.lines = path.read_text(encoding="utf-8").splitlines()

    def all_of(self, key: str) -> list[str]:
        found = (line.partition("=") for line in self.lines)
        return [value.strip('"') for name, _, value in found if name == key]


def service_of(path: Path) -> str:
    return re.split(r"[@.]", path.name)[0]


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_service_runs_a_command_of_chainctl_with_variables_that_it_sets(path: Path) -> None:
    unit = Unit(path)
    program, *words = unit["Service"]["ExecStart"].split()
    assert program == f"{FOLDER}/chainctl"
    text = " ".join(words).replace("%i", "1").replace("%S/%p", f"/var/lib/{service_of(path)}")
    for variable in unit.all_of("Environment"):
        name, _, value = variable.partition("=")
        text = text.replace(f"${{{name}}}", value).replace(f"${name}", value)
    assert "$" not in text
    assert refusal_of(text.split()) is None
    assert words[0] != "verify" or "--local" in text.split(), "requirements.txt has no Spark"


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_service_is_watched_limited_and_restarted(path: Path) -> None:
    service = Unit(path)["Service"]
    assert service["MemoryMax"]
    if service["Type"] == "oneshot":
        assert path.with_suffix(".timer").exists()
    else:
        assert service["Type"] == "notify"
        assert service["WatchdogSec"]
        assert service["Restart"] == "on-failure"


def test_no_service_leaves_its_memory_in_a_file() -> None:
    common = Unit(UNITS / "orderchain-.service.d/10-common.conf")
    assert common["Service"]["LimitCORE"] == "0"


def test_no_service_ends_because_its_child_was_killed_for_its_memory() -> None:
    common = Unit(UNITS / "orderchain-.service.d/10-common.conf")
    assert common["Service"]["OOMPolicy"] == "continue"


def environment_examples() -> list[str]:
    """Return the variables of the example, those in comments too."""
    text = (DEPLOY / "environment.example").read_text(encoding="utf-8")
    return re.findall(r"^#?([A-Z][A-Z_]+=.*)$", text, flags=re.MULTILINE)


def test_variables_of_the_example_are_settings_or_options_of_a_unit() -> None:
    of_units = {
        variable.partition("=")[0]
        for path in [*SERVICES, *UNITS.glob("*.d/*.conf")]
        for variable in Unit(path).all_of("Environment")
    }
    of_example = {variable.partition("=")[0] for variable in environment_examples()}
    assert of_example >= of_units - OURS - LIBPQ
    assert of_example | of_units <= OURS | LIBPQ | of_units


def test_settings_of_the_examples_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [
        (name, value.strip('"'))
        for name, _, value in (variable.partition("=") for variable in environment_examples())
        if name in OURS
    ]
    assert ours
    for name, value in ours:
        monkeypatch.setenv(name, value)
        taken = load_settings(["--config", str(DEPLOY / "orderchain.toml.example")])
        assert taken.sources[name.removeprefix("CHAINCTL_").lower()] == name


def analyze(folder: Path, *arguments: str) -> None:
    """Ask systemd-analyze about a copy of the units, whose programs exist here."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze, as in most containers: the units are only parsed")
    shutil.copytree(UNITS, folder, dirs_exist_ok=True)
    for path in folder.glob("orderchain-*.*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8").replace(f"{FOLDER}/chainctl", sys.executable)
            path.write_text(text, encoding="utf-8")
            if "@" in path.name:
                path.rename(path.with_name(path.name.replace("@", "@1")))
    files = [
        path
        for path in sorted(folder.glob("orderchain-*.*"))
        if path.suffix == ".service" or (path.suffix == ".timer" and arguments[0] == "verify")
    ]
    paths = {"SYSTEMD_UNIT_PATH": f"{folder}:", "PATH": "/usr/bin:/bin"}
    done = completed("systemd-analyze", *arguments, *files, env=paths)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "orderchain" not in done.stderr, "it warns"


def test_units_are_taken_by_systemd(tmp_path: Path) -> None:
    analyze(tmp_path, "verify", "--man=no")


def test_units_are_sandboxed(tmp_path: Path) -> None:
    analyze(tmp_path, "security", "--offline=true", "--threshold=20", "--no-pager")
