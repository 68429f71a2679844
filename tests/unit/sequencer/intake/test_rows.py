"""CSV and JSON Lines as orders: what is read, and what is refused by line."""

from __future__ import annotations

import csv
import io
import json
import random
from typing import TYPE_CHECKING

import msgspec
import pytest

from chain_kernel.limits import KEY_BYTES_MAX, PAYLOAD_BYTES_MAX
from sequencer.intake.compressed import ROW_BYTES_MAX
from sequencer.intake.file import unit_of

if TYPE_CHECKING:
    from sequencer import Order
    from tests.unit.sequencer.intake.conftest import ReadAll, Write


def values(order: Order) -> dict[str, str]:
    return msgspec.msgpack.decode(order.payload, type=dict[str, str])


# -- what is read --------------------------------------------------------------------------------


def test_csv_rows_become_maps_of_text_in_the_order_of_the_columns(
    write: Write, read_all: ReadAll
) -> None:
    path = write("o.csv", 'seq,price,note\n1,9.50,"a, ""b"""\n2,,\n')
    orders, fault = read_all(path)
    assert fault is None
    assert [list(values(order).items()) for order in orders] == [
        [("seq", "1"), ("price", "9.50"), ("note", 'a, "b"')],
        [("seq", "2"), ("price", ""), ("note", "")],
    ]
    assert [order.key for order in orders] == ["o.csv#1", "o.csv#2"]
    assert {order.event_time_ns for order in orders} == {None}


def test_csv_as_spreadsheets_write_it_is_read(write: Write, read_all: ReadAll) -> None:
    path = write("o.csv", b'\xef\xbb\xbfseq,note\r\n1,"two\r\nlines"\r\n\r\n2,x\r\n\r\n')
    orders, fault = read_all(path)
    assert fault is None
    assert [values(order) for order in orders] == [
        {"seq": "1", "note": "two\r\nlines"},
        {"seq": "2", "note": "x"},
    ]
    assert orders[1].key == "o.csv#2"


def test_csv_without_a_last_line_end_is_read_whole(write: Write, read_all: ReadAll) -> None:
    orders, fault = read_all(write("o.csv", "a\n1\n2"))
    assert fault is None
    assert len(orders) == 2


def test_csv_with_line_separators_inside_values_keeps_them(write: Write, read_all: ReadAll) -> None:
    orders, fault = read_all(write("o.csv", "a\nx\u2028y\x0bz\x85\n"))
    assert fault is None
    assert values(orders[0]) == {"a": "x\u2028y\x0bz\x85"}


@pytest.mark.parametrize("limit", [1, 7, 64, 1_000])
def test_csv_with_any_size_of_read_gives_the_rows_of_the_csv_module(
    write: Write, read_all: ReadAll, limit: int
) -> None:
    seed = 20_260
    draw = random.Random(seed)
    characters = ["a", "é", "\n", ",", '"', "\r", "😀", " ", "'"]
    rows = [
        ["".join(draw.choices(characters, k=draw.randrange(6))) or "-" for _ in range(4)]
        for _ in range(300)
    ]
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["a", "b", "c", "d"], *rows])
    orders, fault = read_all(write("o.csv", text.getvalue()), limit)
    assert fault is None
    assert [list(values(order).values()) for order in orders] == rows, f"seed {seed}"


def test_json_values_become_text_as_they_are_written(write: Write, read_all: ReadAll) -> None:
    line = (
        '{"s":"a\\u00e9\\u0000","i":-7,"big":123456789012345678901234567890,"f":1.50,"e":1E5,'
        '"t":true,"n":null,"l":[1, 2.50],"o":{"x": -0}}'
    )
    orders, fault = read_all(write("o.jsonl", line + "\n"))
    assert fault is None
    assert values(orders[0]) == {
        "s": "aé\0",
        "i": "-7",
        "big": "123456789012345678901234567890",
        "f": "1.50",
        "e": "1E5",
        "t": "true",
        "n": "",
        "l": "[1, 2.50]",
        "o": '{"x": -0}',
    }


@pytest.mark.parametrize("number", ["-0", "0", "-0.0", "1e-7", "18446744073709551616", "1.10"])
def test_json_numbers_keep_their_text(write: Write, read_all: ReadAll, number: str) -> None:
    text = f'{{"a":"-0,","b":{number}}}\n{{"a":"","b" : {number} }}\n'
    orders, fault = read_all(write("o.jsonl", text))
    assert fault is None
    assert [values(order)["b"] for order in orders] == [number, number]
    assert values(orders[0])["a"] == "-0,"


def test_json_with_empty_lines_and_a_byte_order_mark_is_read(
    write: Write, read_all: ReadAll
) -> None:
    path = write("o.ndjson", b'\xef\xbb\xbf\n{"a":1}\r\n\n  \n{"a":2}')
    orders, fault = read_all(path, 1)
    assert fault is None
    assert [order.key for order in orders] == ["o.ndjson#1", "o.ndjson#2"]


def test_json_and_csv_of_the_same_rows_give_the_same_payloads(
    write: Write, read_all: ReadAll
) -> None:
    rows = [{"seq": str(number), "note": f"n{number}"} for number in range(200)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    table = "seq,note\n" + "".join(f"{row['seq']},{row['note']}\n" for row in rows)
    of_json, _ = read_all(write("o.jsonl", lines))
    of_csv, _ = read_all(write("o.csv", table))
    assert [order.payload for order in of_json] == [order.payload for order in of_csv]


@pytest.mark.parametrize(
    "name", ['with"quote', "back\\slash", "tab\there", "é", "field_0", "class"]
)
def test_column_of_any_name_is_encoded_under_that_name(
    write: Write, read_all: ReadAll, name: str
) -> None:
    orders, fault = read_all(write("o.jsonl", json.dumps({name: "x", "b": "y"}) + "\n"))
    assert fault is None
    assert list(values(orders[0]).items()) == [(name, "x"), ("b", "y")]


def test_key_column_gives_the_keys(write: Write, read_all: ReadAll) -> None:
    orders, fault = read_all(write("o.csv", "id,x\nä-1,2\nb,3\n"), key_column="id")
    assert fault is None
    assert [order.key for order in orders] == ["ä-1", "b"]


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [
        ("ts_ms", "1689038101570", 1_689_038_101_570_000_000),
        ("ts_us", "1689038101570001", 1_689_038_101_570_001_000),
        ("time", "1689038101570000001", 1_689_038_101_570_000_001),
        ("at_s", "4133980799", 4_133_980_799_000_000_000),
        ("ns", "31536000000000000", 31_536_000_000_000_000),
    ],
)
def test_time_column_is_read_in_the_unit_that_its_name_ends_with(
    write: Write, read_all: ReadAll, column: str, text: str, expected: int
) -> None:
    # Only the first time shows the unit: a later one may be anything.
    path = write("o.csv", f"{column},b\n{text},\n-5,\n")
    orders, fault = read_all(path, time_column=column)
    assert fault is None
    scale = expected // int(text)
    assert [order.event_time_ns for order in orders] == [expected, -5 * scale]
    unit = {1: "ns", 1_000: "us", 10**6: "ms", 10**9: "s"}[scale]
    path = write("other.csv", f"t,b\n{text},\n")
    other, fault = read_all(path, time_column="t", time_unit=unit)
    assert fault is None
    assert other[0].event_time_ns == expected


def test_unit_of_a_time_column_is_known_by_the_usual_spellings() -> None:
    spelled = {
        "s": "ts_s TS_S tsS time_sec timeSecs EVENT_SECONDS epoch.second",
        "ms": "TS_MS tsMs timestamp_millis timestampMillis Milliseconds time-msec time(ms) eventMS",
        "us": "ts_us tsUs _usec usecs TIME_MICROS epochMicroseconds time[\u00b5s] t_\u03bcs",
        "ns": "ts_ns TsNs timeNanos nsec NANOSECONDS time ts items atoms timestamp_utc t1 \u65f6",
    }
    found = {unit: [unit_of(name) for name in names.split()] for unit, names in spelled.items()}
    assert found == {unit: [unit] * len(names.split()) for unit, names in spelled.items()}


@pytest.mark.parametrize(
    ("column", "text", "unit"),
    [
        ("time", "1735689600000", "ns"),
        ("timems", "1735689600000", "ns"),
        ("t", "-1", "ns"),
        ("at_s", "31535999", "s"),
        ("at_s", "4133980800", "s"),
        ("at_us", "1735689600000000000", "us"),
    ],
)
def test_first_time_that_shows_another_unit_is_refused_before_it_is_sealed(
    write: Write, read_all: ReadAll, column: str, text: str, unit: str
) -> None:
    orders, fault = read_all(write("o.csv", f"{column}\n{text}\n"), time_column=column)
    assert orders == []
    assert fault is not None
    assert fault.line == 2
    assert f"read in {unit}; --time-unit sets another unit" in str(fault)


def test_csv_without_a_header_is_refused_and_read_by_the_names_that_are_given(
    write: Write, read_all: ReadAll
) -> None:
    # Numbers alone, numbers and words, dates and words.
    for first in ("34200.017,5,0,-1", "7001,BUY,true,+4.5e3", "2025-01-02 09:30:00,ALPHA,B,x"):
        path = write("o.csv", f"{first}\n1,2,3,4\n")
        orders, fault = read_all(path)
        assert orders == []
        assert "line 1: header was " in str(fault)
        assert "has the file no header? give --columns a,b,c" in str(fault)
        orders, fault = read_all(path, columns=("a", "b", "c", "d"))
        assert fault is None
        assert list(values(orders[0]).values()) == first.split(",")
        assert list(values(orders[1])) == ["a", "b", "c", "d"]
    _, fault = read_all(path, columns=("a", "b"))
    assert "line 1: number of fields was 4, expected 2, as in --columns" in str(fault)
    _, fault = read_all(path, columns=("a", "a"))
    assert "name of column 2 was 'a'" in str(fault)
    _, fault = read_all(write("o.jsonl", '{"a":1}\n'), columns=("a",))
    assert "--columns was 'a'" in str(fault)


def test_header_whose_names_look_like_values_is_read_where_they_are_given(
    write: Write, read_all: ReadAll
) -> None:
    orders, fault = read_all(write("o.csv", "symbol,1,2\nA,5,6\n"), columns=("symbol", "1", "2"))
    assert fault is None
    assert [values(order) for order in orders] == [{"symbol": "A", "1": "5", "2": "6"}]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("header", ["a,b", '"a",b', "a"])
def test_header_that_comes_again_is_refused_by_its_line_or_skipped(
    write: Write, read_all: ReadAll, header: str, mark: str
) -> None:
    row = "1,2" if "," in header else "1"
    path = write("o.csv", f"{header}\n{row}\n\n{mark}{header}\n{row}\n")
    for limit in (1, 1_000):
        orders, fault = read_all(path, limit)
        assert len(orders) == 1
        assert fault is not None
        assert fault.line == 4
        assert "the header comes again" in str(fault)
        orders, fault = read_all(path, limit, header_again="skip")
        assert fault is None
        assert [values(order)["a"] for order in orders] == ["1", "1"]


def test_csv_whose_lines_end_with_cr_alone_is_read_at_any_length(
    write: Write, read_all: ReadAll
) -> None:
    row = f"ALPHA,{'9' * 50_000}\r"
    rows = ROW_BYTES_MAX // len(row) + 5
    orders, fault = read_all(write("o.csv", "symbol,qty\r" + row * rows))
    assert fault is None
    assert len(orders) == rows
    _, fault = read_all(write("o.csv", "a\r" + "9" * 2 * ROW_BYTES_MAX + "\r"))
    assert "lines of at most" in str(fault)


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "line", "part"),
    [
        (b"a,b\n1,2\n3\n4,5\n", 3, "number of fields was 1, expected 2, as in line 1"),
        (b"a,b\n1,2\n3,4,5\n", 3, "number of fields was 3, expected 2"),
        (b'a,b\n1,2\n"3"x,4\n', 3, "well-formed CSV"),
        (b'a,b\n1,2\n"3,4\n5,6\n', 3, "well-formed CSV"),
        (b"a,b\n1,2\n3,\xff\n5,6\n", 3, "column 'b'"),
        (b"a,b\n1,2\n3,x\x00y\n5,6\n", 3, "UTF-8 text without NUL"),
        (b'a,b\n"1\n\n",2\n3\n', 5, "number of fields"),
        (b"a,b\n\n1,2\n\n3\n", 5, "number of fields"),
        (b"a,b\n1,2\n3," + b"x" * (PAYLOAD_BYTES_MAX + 1) + b"\n", 3, "payload was"),
    ],
)
@pytest.mark.parametrize("limit", [1, 1_000])
def test_csv_with_a_bad_row_yields_the_rows_before_it_and_names_its_line(
    write: Write, read_all: ReadAll, content: bytes, line: int, part: str, limit: int
) -> None:
    orders, fault = read_all(write("o.csv", content), limit)
    assert [values(order)["b"] for order in orders] == ["2"]
    assert fault is not None
    assert fault.line == line
    assert f"line {line}: " in str(fault)
    assert part in str(fault)
    assert len(str(fault)) < 500


@pytest.mark.parametrize(
    ("content", "line", "part"),
    [
        (b'{"a":1}\n{"a":2\n', 2, "one JSON object"),
        (b'{"a":1}\n{"a":2,"b":3}\n', 2, "keys was 'a, b', expected a, as in the first object"),
        (b'{"a":1}\n{}\n', 2, "keys was"),
        (b'{"a":1}\n[1]\n', 2, "one JSON object"),
        (b'{"a":1}\n{"a":1} x\n', 2, "one JSON object"),
        (b'{"a":1}\n{"a":"\xff"}\n', 2, "UTF-8 text without NUL"),
        (b'{"a":1}\n{"a":"\x00"}\n', 2, "UTF-8 text without NUL"),
        (b'{"a":1}\n\n{"a":"\\ud800"}\n', 3, "one JSON object"),
        (b'{"a":1}\n{"a":' + b"[" * 100_000 + b"\n", 2, "one JSON object"),
        (b'{"a":1}\n{"a":NaN}\n', 2, "one JSON object"),
    ],
)
@pytest.mark.parametrize("limit", [1, 1_000])
def test_json_with_a_bad_row_yields_the_rows_before_it_and_names_its_line(
    write: Write, read_all: ReadAll, content: bytes, line: int, part: str, limit: int
) -> None:
    orders, fault = read_all(write("o.jsonl", content), limit)
    assert [values(order) for order in orders] == [{"a": "1"}]
    assert fault is not None
    assert fault.line == line
    assert part in str(fault)
    assert len(str(fault)) < 500


def test_json_with_its_keys_in_another_order_is_refused(write: Write, read_all: ReadAll) -> None:
    orders, fault = read_all(write("o.jsonl", '{"a":1,"b":2}\n{"b":2,"a":1}\n'))
    assert len(orders) == 1
    assert fault is not None
    assert fault.line == 2


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("o.csv", "a,,c\n1,2,3\n", "line 1: name of column 2 was '', expected a name"),
        ("o.csv", "a, ,c\n1,2,3\n", "name of column 2"),
        ("o.csv", "a,b,a\n1,2,3\n", "name of column 3 was 'a'"),
        ("o.csv", b"a,\xff\n1,2\n", "name of column 2"),
        ("o.csv", '"a\n', "line 1: header"),
        ("o.csv", "\n1\n", "line 1: header"),
        ("o.csv", "a,b\n", "it has none"),
        ("o.csv", "a,b", "it has none"),
        ("o.csv", "a,b\n\n\n", "it has none"),
        ("o.jsonl", "\n\n", "it has none"),
        ("o.jsonl", "{}\n", "line 1: object"),
        ("o.jsonl", '{"":1}\n', "name of column 1"),
        ("o.jsonl", '[{"a":1}]\n', "one JSON object"),
        ("o.jsonl", "a,b\n1,2\n", "one JSON object"),
        ("o.txt", "a\n1\n", "--format"),
        ("o", "a\n1\n", "--format"),
        ("o.csv", bytes(range(256)) * 20, "line 1"),
        ("o.csv", "a\n1\n".encode("utf-16"), "line 1"),
    ],
)
def test_file_whose_beginning_cannot_be_used_is_refused_without_an_order(
    write: Write, read_all: ReadAll, name: str, content: str | bytes, part: str
) -> None:
    orders, fault = read_all(write(name, content))
    assert orders == []
    assert fault is not None
    assert part in str(fault)


def test_file_of_an_unknown_name_is_read_as_asked(write: Write, read_all: ReadAll) -> None:
    orders, fault = read_all(write("o.txt", "a\n1\n"), format="csv")
    assert fault is None
    assert orders[0].key == "o.txt#1"


@pytest.mark.parametrize("option", ["key_column", "time_column"])
def test_column_that_is_not_there_is_refused_with_those_that_are(
    write: Write, read_all: ReadAll, option: str
) -> None:
    orders, fault = read_all(write("o.csv", "a,b\n1,2\n"), 1_000, **{option: "c"})
    assert orders == []
    assert fault is not None
    assert "was 'c', expected one of the file's columns (a, b)" in str(fault)


@pytest.mark.parametrize("key", ["", "x" * (KEY_BYTES_MAX + 1), "é" * (KEY_BYTES_MAX // 2 + 1)])
def test_key_that_cannot_be_one_is_refused_by_line(
    write: Write, read_all: ReadAll, key: str
) -> None:
    orders, fault = read_all(write("o.csv", f"id,b\nk,1\n{key},2\n"), key_column="id")
    assert len(orders) == 1
    assert fault is not None
    assert fault.line == 3
    assert "column 'id'" in str(fault)


def test_key_with_an_escaped_nul_is_refused_since_the_table_cannot_hold_it(
    write: Write, read_all: ReadAll
) -> None:
    _, fault = read_all(write("o.jsonl", '{"id":"a\\u0000"}\n'), key_column="id")
    assert fault is not None
    assert fault.line == 1


@pytest.mark.parametrize(
    "text",
    ["", "x", "1.5", " 1", "1_0", "+1", "0x1", "\uff11", "9223372036854775808", "1" * 5_000, "nan"],
)
def test_time_that_is_no_integer_of_64_bits_is_refused_by_line(
    write: Write, read_all: ReadAll, text: str
) -> None:
    path = write("o.csv", f"t,b\n{10**18},1\n{text},2\n")
    orders, fault = read_all(path, time_column="t")
    assert len(orders) == 1
    assert fault is not None
    assert fault.line == 3
    assert "column 't'" in str(fault)


def test_time_that_overflows_in_its_unit_is_refused(write: Write, read_all: ReadAll) -> None:
    _, fault = read_all(write("o.csv", "t_s\n9223372037\n"), time_column="t_s")
    assert fault is not None
    assert fault.line == 2


def test_file_with_a_thousand_columns_is_read(write: Write, read_all: ReadAll) -> None:
    names = [f"c{number}" for number in range(1_000)]
    orders, fault = read_all(write("o.csv", f"{','.join(names)}\n{',' * 999}\n"))
    assert fault is None
    assert list(values(orders[0])) == names


def test_file_cut_off_while_compressed_yields_whole_rows_only(
    write: Write, read_all: ReadAll
) -> None:
    rows = "".join(f"{number},{random.Random(number).random()}\n" for number in range(30_000))
    path = write("o.csv.gz", "n,r\n" + rows)
    path.write_bytes(path.read_bytes()[:-100_000])
    orders, fault = read_all(path)
    assert fault is not None
    assert "cut off" in str(fault)
    assert 0 < len(orders) < 30_000
    assert [values(order)["n"] for order in orders] == [str(n) for n in range(len(orders))]
