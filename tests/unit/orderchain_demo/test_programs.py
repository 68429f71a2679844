from pathlib import Path

import pytest

from chain_kernel.text import not_installed
from chainctl.main import main


def test_demo_without_spark_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orderchain_demo.verify.find_spec", lambda _: None)
    assert main(["demo", "--stack-dir", str(tmp_path / "stack")]) == 2
    said = f"chainctl: {not_installed('pyspark', 'spark')}; --no-spark does without\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "stack").exists()
