from pathlib import Path

import pytest

from chain_kernel.errors import SchemaError
from chainctl.schema.parts import PARTS, Migration, Version, migrations_of, steps_to

MIGRATIONS = {number: Migration(number, "m", "b", "a") for number in (3, 4)}


@pytest.mark.parametrize(
    ("now", "target", "finishes", "titles"),
    [
        (Version(2, None), 2, True, []),
        (Version(2, None), 3, False, ["0003_m.before"]),
        (Version(2, None), 3, True, ["0003_m.before", "0003_m.after"]),
        (Version(2, 3), 3, False, []),
        (Version(2, 3), 3, True, ["0003_m.after"]),
        (Version(2, 3), 4, True, ["0003_m.after", "0004_m.before", "0004_m.after"]),
    ],
)
def test_steps_are_the_halves_that_are_not_applied_yet(
    now: Version, target: int, finishes: bool, titles: list[str]
) -> None:
    steps = steps_to(target, now, MIGRATIONS, finishes=finishes)
    assert [step.title for step in steps] == titles
    assert not steps or not finishes or steps[-1].leads_to == Version(target, None)


@pytest.mark.parametrize(
    ("now", "target", "finishes", "refusal"),
    [
        (Version(3, None), 2, True, "was 3, expected at most 2; use a newer orderchain"),
        (Version(2, 3), 2, True, "was 3, expected at most 2; use a newer orderchain"),
        (Version(1, None), 3, True, "was 1, expected 3, and no migration leads to 2"),
        (Version(2, None), 4, False, "was 2, expected 3: one version at a time"),
        (Version(4, None), 5, False, "was 4, expected 5, and no migration leads to 5"),
    ],
)
def test_what_no_steps_lead_to_is_refused(
    now: Version, target: int, finishes: bool, refusal: str
) -> None:
    with pytest.raises(SchemaError, match=refusal):
        steps_to(target, now, MIGRATIONS, finishes=finishes)


@pytest.mark.parametrize(
    ("names", "refusal"),
    [
        (["0003_a.before.sql"], "migration a has one half"),
        (["0003_a.before.sql", "0003_b.after.sql"], "has one half"),
        (["3_a.sql"], "expected a name such as"),
        ([f"0003_{n}.{h}.sql" for n in "ab" for h in ("before", "after")], "lead to one version"),
    ],
)
def test_files_that_are_no_pairs_are_refused(
    tmp_path: Path, names: list[str], refusal: str
) -> None:
    (tmp_path / "chain").mkdir()
    for name in names:
        (tmp_path / "chain" / name).write_text("SELECT 1;")
    with pytest.raises(ValueError, match=refusal):
        migrations_of(PARTS["chain"], tmp_path)
