import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.questions import NAMES
from benchmarks.spreads import PROCESSES
from tests.integration.chainctl.conftest import ROOT, Call, Refused, clean_environment
from tests.programs import completed


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--only", "speed"], "speed"),
        (["--only", ""], "--only"),
        (["--repeats", "0"], "--repeats"),
        (["--repeats", "five"], "five"),
        (["--repeats", "100000000000"], "--repeats"),
        (["--fast"], "--fast"),
        (["comparison"], "comparison"),
        (["--stack-dir"], "--stack-dir"),
    ],
)
def test_bench_with_bad_arguments_is_refused_in_one_line(
    refused: Refused, arguments: list[str], named: str
) -> None:
    assert named in refused("bench", *arguments)


def test_bench_lists_its_questions_with_their_times(call: Call) -> None:
    done = call("bench", "--list")
    assert done.code == 0, done
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines] == list(NAMES)
    assert all(" min " in line for line in lines)


def test_bench_makes_its_report_again_from_saved_lines(call: Call, tmp_path: Path) -> None:
    saved = '{"question":"comparison","arm":"engine 100","repeat":0,"run":"r","engine":"e"'
    figures = '"figures":{"delivered_per_second":12345.0,"orders":1.0' + "".join(
        f',"{name}":1.0' for name in ("wal_mib", *(f"{end}_cpu_seconds" for end in PROCESSES))
    )
    (tmp_path / "comparison.jsonl").write_text(f"{saved},{figures}}}}}\n")
    done = call("bench", "--only-report", "--output", tmp_path)
    assert done.code == 0, done
    assert "12,345" in (tmp_path / "table.md").read_text()
    assert str(tmp_path / "comparison.svg") in done.out


def test_benchmarks_as_a_module_are_the_same_command(tmp_path: Path) -> None:
    done = completed(
        sys.executable, "-m", "benchmarks", "--only", "speed", cwd=ROOT, env=clean_environment({})
    )
    assert done.returncode == 2
    assert "'speed' is none of" in done.stderr


def test_bench_without_the_checkout_says_where_it_is(tmp_path: Path) -> None:
    for package in ("chainctl", "chain_kernel"):
        shutil.copytree(ROOT / package, tmp_path / package)
    hidden = (
        "import sys; from importlib.abc import MetaPathFinder\n"
        "class Hidden(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'benchmarks': raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "from chainctl.main import main; sys.exit(main(['bench', '--quick']))"
    )
    done = completed(sys.executable, "-c", hidden, cwd=tmp_path, env=clean_environment({}))
    assert done.returncode == 2
    assert "checkout" in done.stderr
    assert done.stderr.count("\n") == 1
