"""The wheel of the compiled functions: one for every Python, found by the engine, which says so."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import completed
from tests.sources import ROOT

ASKED = "from chain_kernel.speed import implementation; print(implementation())"


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return completed(*command, cwd=ROOT, env={**os.environ, **environ})


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_wheel_of_the_stable_abi_is_built_and_chosen_by_the_environment(tmp_path: Path) -> None:
    source = shutil.copytree(ROOT / "speedups", tmp_path / "speedups")
    built = run(
        *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"),
        *("--wheel-dir", str(tmp_path), str(source)),
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith("orderchain_speed-1.0-cp311-abi3-")
    shutil.unpack_archive(wheel, tmp_path / "installed", "zip")
    for chosen, expected in {"": "native", "native": "native", "python": "python"}.items():
        path = str(tmp_path / "installed")
        asked = run(sys.executable, "-c", ASKED, PYTHONPATH=path, ORDERCHAIN_IMPL=chosen)
        assert asked.stdout.strip() == expected, asked.stderr
