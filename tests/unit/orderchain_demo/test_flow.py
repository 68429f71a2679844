from hashlib import sha256

from orderchain_demo.flow import csv_lines

FLOW_DIGEST = "9b1ef4dde126c2998805b1274b36956c6f4a2c210859dd6c57be1cc421b0c615"


def test_flow_with_the_same_seed_has_the_same_bytes_on_every_python() -> None:
    assert sha256("".join(csv_lines(7, 5_000)).encode()).hexdigest() == FLOW_DIGEST
    assert list(csv_lines(7, 100)) != list(csv_lines(8, 100))
