from __future__ import annotations

from chainctl.schema.facts import Fact, Facts, differences

SHIPPED = Facts(
    18,
    (
        Fact("table t", "constraint c", "CHECK ((t.a <> ''::text))"),
        Fact("table t", "owner", "us"),
    ),
)


def test_expressions_of_another_release_are_compared_by_their_words() -> None:
    same = (Fact("table t", "constraint c", "CHECK (a <> '')"), Fact("table t", "owner", "us"))
    assert differences(Facts(15, same), SHIPPED) == []
    assert differences(Facts(18, same), SHIPPED) == [
        "table t: constraint c is CHECK (a <> ''), shipped as CHECK ((t.a <> ''::text))"
    ]
    other = (Fact("table t", "constraint c", "CHECK (b <> '')"), Fact("table t", "owner", "us"))
    assert len(differences(Facts(15, other), SHIPPED)) == 1


def test_an_object_that_is_missing_is_one_difference() -> None:
    assert differences(Facts(18, ()), SHIPPED) == ["table t: missing"]
