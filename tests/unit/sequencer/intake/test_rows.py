"""CSV and JSON Lines as orders: what is read, and what is refused by line."""

import csv
import io
import json
import random
from typing import Any

import msgspec
import pytest

from chain_kernel.limits import KEY_BYTES_MAX, PAYLOAD_BYTES_MAX
from sequencer import Order
from sequencer.intake.compressed import ROW_BYTES_MAX
from sequencer.intake.order_file import unit_of
from tests.unit.sequencer.intake.conftest import ReadAll, Write


def values(order: Order) -> dict[str, str]:
    return msgspec.msgpack.decode(order.payload, type=dict[str, str])


def rows_of(found: tuple[list[Order], object]) -> list[dict[str, str]]:
    """The values of a file that was read to its end."""
    orders, fault = found
    assert fault is None
    return [values(order) for order in orders]


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        (
            "o.csv", 'seq,price,note\n1,9.50,"a, ""b"""\n2,,\n',
            [{"seq": "1", "price": "9.50", "note": 'a, "b"'},
             {"seq": "2", "price": "", "note": ""}],
        ),
        (  # as spreadsheets write it
            "o.csv", b'\xef\xbb\xbfseq,note\r\n1,"two\r\nlines"\r\n\r\n2,x\r\n\r\n',
            [{"seq": "1", "note": "two\r\nlines"}, {"seq": "2", "note": "x"}],
        ),
        ("o.csv", "a\n1\n2", [{"a": "1"}, {"a": "2"}]),
        ("o.csv", "a\nx\u2028y\x0bz\x85\n", [{"a": "x\u2028y\x0bz\x85"}]),
        ("o.ndjson", b'\xef\xbb\xbf\n{"a":1}\r\n\n  \n{"a":2}', [{"a": "1"}, {"a": "2"}]),
        (
            "o.jsonl",
            '{"s":"a\\u00e9\\u0000","i":-7,"big":123456789012345678901234567890,"f":1.50,"e":1E5,'
            '"t":true,"n":null,"l":[1, 2.50],"o":{"x": -0}}\n',
            [{"s": "aé\0", "i": "-7", "big": "123456789012345678901234567890", "f": "1.50",
              "e": "1E5", "t": "true", "n": "", "l": "[1, 2.50]", "o": '{"x": -0}'}],
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("limit", [1, 1_000])
def test_rows_become_maps_of_text_in_the_order_of_the_columns(
    read: ReadAll, name: str, content: str | bytes, rows: list[dict[str, str]], limit: int
) -> None:
    orders, fault = read(name, content, limit)
    found = rows_of((orders, fault))
    assert list(map(list, map(dict.items, found))) == list(map(list, map(dict.items, rows)))
    assert [order.key for order in orders] == [f"{name}#{n + 1}" for n in range(len(rows))]
    assert {order.event_time_ns for order in orders} == {None}


@pytest.mark.parametrize("limit", [1, 7, 64, 1_000])
def test_csv_gives_the_rows_of_the_csv_module(read: ReadAll, limit: int) -> None:
    draw = random.Random(20_260)
    characters = ["a", "é", "\n", ",", '"', "\r", "😀", " ", "'"]
    rows = [
        ["".join(draw.choices(characters, k=draw.randrange(6))) or "-" for _ in range(4)]
        for _ in range(300)
    ]
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["a", "b", "c", "d"], *rows])
    found = rows_of(read("o.csv", text.getvalue(), limit))
    assert [list(row.values()) for row in found] == rows


@pytest.mark.parametrize("number", ["-0", "0", "-0.0", "1e-7", "18446744073709551616", "1.10"])
def test_json_numbers_keep_their_text(read: ReadAll, number: str) -> None:
    text = f'{{"a":"-0,","b":{number}}}\n{{"a":"","b" : {number} }}\n'
    assert rows_of(read("o.jsonl", text)) == [{"a": "-0,", "b": number}, {"a": "", "b": number}]


def test_json_and_csv_of_the_same_rows_give_the_same_payloads(read: ReadAll) -> None:
    rows = [{"seq": str(number), "note": f"n{number}"} for number in range(200)]
    of_json, _ = read("o.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    of_csv, _ = read("o.csv", "seq,note\n" + "".join(f"{n},n{n}\n" for n in range(200)))
    assert [order.payload for order in of_json] == [order.payload for order in of_csv]


@pytest.mark.parametrize("name", ['with"quote', "back\\slash", "tab\there", "é", "field_0"])
def test_column_of_any_name_is_encoded_under_that_name(read: ReadAll, name: str) -> None:
    (row,) = rows_of(read("o.jsonl", json.dumps({name: "x", "b": "y"}) + "\n"))
    assert list(row.items()) == [(name, "x"), ("b", "y")]


def test_key_column_gives_the_keys(read: ReadAll) -> None:
    orders, fault = read("o.csv", "id,x\nä-1,2\nb,3\n", key_column="id")
    assert fault is None
    assert [order.key for order in orders] == ["ä-1", "b"]


@pytest.mark.parametrize(
    ("column", "text", "scale", "unit"),
    [
        ("ts_ms", "1689038101570", 10**6, "ms"),
        ("ts_us", "1689038101570001", 1_000, "us"),
        ("time", "1689038101570000001", 1, "ns"),
        ("at_s", "4133980799", 10**9, "s"),
        ("ns", "31536000000000000", 1, "ns"),
    ],
)
def test_time_column_is_read_in_the_unit_that_its_name_ends_with(
    read: ReadAll, column: str, text: str, scale: int, unit: str
) -> None:
    # Only the first time shows the unit: a later one may be anything.
    orders, _ = read("o.csv", f"{column},b\n{text},\n-5,\n", time_column=column)
    assert [order.event_time_ns for order in orders] == [int(text) * scale, -5 * scale]
    orders, _ = read("other.csv", f"t,b\n{text},\n", time_column="t", time_unit=unit)
    assert [order.event_time_ns for order in orders] == [int(text) * scale]


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
def test_time_of_another_unit_is_refused(read: ReadAll, column: str, text: str, unit: str) -> None:
    orders, fault = read("o.csv", f"{column}\n{text}\n", time_column=column)
    assert orders == []
    assert fault is not None
    assert fault.line == 2
    assert f"read in {unit}; --time-unit sets another unit" in str(fault)


# Numbers alone, numbers and words, dates and words.
@pytest.mark.parametrize(
    "first", ["34200.017,5,0,-1", "7001,BUY,true,+4.5e3", "2025-01-02 09:30:00,ALPHA,B,x"]
)
def test_csv_without_a_header_is_read_by_given_names(read: ReadAll, first: str) -> None:
    orders, fault = read("o.csv", f"{first}\n1,2,3,4\n")
    assert orders == []
    assert "line 1: header was " in str(fault)
    assert "has the file no header? give --columns a,b,c" in str(fault)
    rows = rows_of(read("o.csv", None, columns=("a", "b", "c", "d")))
    assert list(rows[0].values()) == first.split(",")
    assert list(rows[1]) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("header", ["a,b", '"a",b', "a"])
@pytest.mark.parametrize("limit", [1, 1_000])
def test_header_again_is_refused_or_skipped(
    read: ReadAll, header: str, mark: str, limit: int
) -> None:
    row = "1,2" if "," in header else "1"
    orders, fault = read("o.csv", f"{header}\n{row}\n\n{mark}{header}\n{row}\n", limit)
    assert len(orders) == 1
    assert fault is not None
    assert fault.line == 4
    assert "the header comes again" in str(fault)
    rows = rows_of(read("o.csv", None, limit, header_again="skip"))
    assert [row["a"] for row in rows] == ["1", "1"]


def test_csv_whose_lines_end_with_cr_alone_is_read_at_any_length(read: ReadAll) -> None:
    row = f"ALPHA,{'9' * 50_000}\r"
    rows = ROW_BYTES_MAX // len(row) + 5
    assert len(rows_of(read("o.csv", "symbol,qty\r" + row * rows))) == rows
    _, fault = read("o.csv", "a\r" + "9" * 2 * ROW_BYTES_MAX + "\r")
    assert "lines of at most" in str(fault)


WELL = "well-formed CSV"
OBJECT = "one JSON object"
TEXT = "UTF-8 text without NUL"
TIME: dict[str, Any] = {"time_column": "t"}
KEY: dict[str, Any] = {"key_column": "id"}
LARGE = b"x" * (PAYLOAD_BYTES_MAX + 1)

BAD_ROWS: list[tuple[str | bytes, dict[str, Any], int, str]] = [
    ("a,b\n1,2\n3\n4,5\n", {}, 3, "number of fields was 1, expected 2, as in line 1"),
    ("a,b\n1,2\n3,4,5\n", {}, 3, "number of fields was 3, expected 2"),
    ('a,b\n1,2\n"3"x,4\n', {}, 3, WELL),
    ('a,b\n1,2\n"3,4\n5,6\n', {}, 3, WELL),
    (b"a,b\n1,2\n3,\xff\n5,6\n", {}, 3, "column 'b'"),
    (b"a,b\n1,2\n3,x\x00y\n5,6\n", {}, 3, TEXT),
    ('a,b\n"1\n\n",2\n3\n', {}, 5, "number of fields"),
    ("a,b\n\n1,2\n\n3\n", {}, 5, "number of fields"),
    (b"a,b\n1,2\n3," + LARGE + b"\n", {}, 3, "payload was"),
    ('{"a":1}\n{"a":2\n', {}, 2, OBJECT),
    ('{"a":1}\n{"a":2,"b":3}\n', {}, 2, "keys was 'a, b', expected a, as in the first object"),
    ('{"a":1,"b":2}\n{"b":2,"a":1}\n', {}, 2, "keys was"),
    ('{"a":1}\n{}\n', {}, 2, "keys was"),
    ('{"a":1}\n[1]\n', {}, 2, OBJECT),
    ('{"a":1}\n{"a":1} x\n', {}, 2, OBJECT),
    (b'{"a":1}\n{"a":"\xff"}\n', {}, 2, TEXT),
    (b'{"a":1}\n{"a":"\x00"}\n', {}, 2, TEXT),
    ('{"a":1}\n\n{"a":"\\ud800"}\n', {}, 3, OBJECT),
    (b'{"a":1}\n{"a":' + b"[" * 100_000 + b"\n", {}, 2, OBJECT),
    ('{"a":1}\n{"a":NaN}\n', {}, 2, OBJECT),
    ("id,b\nk,1\n,2\n", KEY, 3, "column 'id'"),
    (f"id,b\nk,1\n{'x' * (KEY_BYTES_MAX + 1)},2\n", KEY, 3, "column 'id'"),
    (f"id,b\nk,1\n{'é' * (KEY_BYTES_MAX // 2 + 1)},2\n", KEY, 3, "column 'id'"),
    ('{"id":"k"}\n{"id":"a\\u0000"}\n', KEY, 2, "column 'id'"),
    ("t_s\n4133980799\n9223372037\n", {"time_column": "t_s"}, 3, "column 't_s'"),
    *(
        (f"t,b\n{10**18},1\n{text},2\n", TIME, 3, "column 't'")
        for text in (
            "", "x", "1.5", " 1", "1_0", "+1", "0x1", "\uff11", str(2**63), "1" * 5_000, "nan",
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("content", "options", "line", "part"), BAD_ROWS)
@pytest.mark.parametrize("limit", [1, 1_000])
def test_bad_row_is_named_by_its_line_behind_the_rows_before_it(
    read: ReadAll, content: str | bytes, options: dict[str, Any], line: int, part: str, limit: int
) -> None:
    name = "o.jsonl" if content[:1] in ("{", b"{") else "o.csv"
    orders, fault = read(name, content, limit, **options)
    assert len(orders) == 1
    assert fault is not None
    assert fault.line == line
    assert f"line {line}: " in str(fault)
    assert part in str(fault)
    assert len(str(fault)) < 500


BAD_BEGINNINGS: list[tuple[str, str | bytes, dict[str, Any], str]] = [
    ("o.csv", "a,,c\n1,2,3\n", {}, "line 1: name of column 2 was '', expected a name"),
    ("o.csv", "a, ,c\n1,2,3\n", {}, "name of column 2"),
    ("o.csv", "a,b,a\n1,2,3\n", {}, "name of column 3 was 'a'"),
    ("o.csv", b"a,\xff\n1,2\n", {}, "name of column 2"),
    ("o.csv", '"a\n', {}, "line 1: header"),
    ("o.csv", "\n1\n", {}, "line 1: header"),
    ("o.csv", "a,b\n", {}, "it has none"),
    ("o.csv", "a,b", {}, "it has none"),
    ("o.csv", "a,b\n\n\n", {}, "it has none"),
    ("o.jsonl", "\n\n", {}, "it has none"),
    ("o.jsonl", "{}\n", {}, "line 1: object"),
    ("o.jsonl", '{"":1}\n', {}, "name of column 1"),
    ("o.jsonl", '[{"a":1}]\n', {}, OBJECT),
    ("o.jsonl", "a,b\n1,2\n", {}, OBJECT),
    ("o.txt", "a\n1\n", {}, "--format"),
    ("o", "a\n1\n", {}, "--format"),
    ("o.csv", bytes(range(256)) * 20, {}, "line 1"),
    ("o.csv", "a\n1\n".encode("utf-16"), {}, "line 1"),
    ("o.csv", "1,2,3\n", {"columns": ("a", "b")},
     "line 1: number of fields was 3, expected 2, as in --columns"),
    ("o.csv", "1,2\n", {"columns": ("a", "a")}, "name of column 2 was 'a'"),
    ("o.jsonl", '{"a":1}\n', {"columns": ("a",)}, "--columns was 'a'"),
    ("o.csv", "ms;id;price\n1;b1;10,5\n", {}, "separator another one? --delimiter ';')"),
    ("o.csv", "id\tfirst, last\tms\n1\tx, y\t1\n", {}, r"separator another one? --delimiter '\t')"),
    ("o.csv", "ms|id\n1|b1\n", {}, "line 1: header was 'ms|id', expected names with ',' between"),
    ("o.csv", "1;2\n", {"columns": ("a", "b")}, "separator another one? --delimiter ';')"),
    ("o.csv", "1;2\n", {"columns": ("a;b",)}, "--columns was 'a;b', expected names"),
    ("o.csv", "sep=;\na;b\n", {"delimiter": ","}, "line 1: --delimiter was ',', expected ';'"),
    ("o.csv", "sep=;\na;\n1;2\n", {}, "line 2: name of column 2 was ''"),
    *(("o.csv", "a\n1\n", {"delimiter": given}, f"--delimiter was {given!r}, expected one")
      for given in ("", ";;", '"', "\n", "\0", "\udcff")),
    ("o.jsonl", '{"a":1}\n', {"delimiter": ";"}, "--delimiter was ';'"),
    ("o.csv", "a,b\n1,2\n", {"key_column": "c"},
     "was 'c', expected one of the file's columns (a, b)"),
    ("o.csv", "a,b\n1,2\n", {"time_column": "c"},
     "was 'c', expected one of the file's columns (a, b)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "options", "part"), BAD_BEGINNINGS)
def test_file_whose_beginning_cannot_be_used_is_refused_without_an_order(
    read: ReadAll, name: str, content: str | bytes, options: dict[str, Any], part: str
) -> None:
    orders, fault = read(name, content, **options)
    assert orders == []
    assert part in str(fault)


def test_what_the_caller_says_of_a_file_is_believed(read: ReadAll) -> None:
    orders, fault = read("o.txt", "a\n1\n", format="csv")
    assert fault is None
    assert orders[0].key == "o.txt#1"
    rows = rows_of(read("o.csv", "symbol,1,2\nA,5,6\n", columns=("symbol", "1", "2")))
    assert rows == [{"symbol": "A", "1": "5", "2": "6"}]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('ms;a|b\n1;"x;y"\n\n2;\n', {"delimiter": ";"}),
        ('ms\ta|b\n1\t"x;y"\n2\t\n', {"delimiter": r"\t"}),
        ('ms|"a|b"\n1|x;y\n2|\n', {"delimiter": "|"}),
        ('sep=;\nms;a|b\n1;"x;y"\n2;\n', {}),
        ('\ufeff"SEP=|"\r\nms|"a|b"\r\n1|x;y\r\n2|\r\n', {"delimiter": "|"}),
        ("sep=,\nms,a|b\n1,x;y\n2,\n", {"columns": ("ms", "a|b")}),
        ("1,x;y\n2,\n", {"columns": ("ms", "a|b")}),
    ],
)
def test_fields_are_separated_by_what_the_caller_or_the_first_line_names(
    read: ReadAll, text: str, options: dict[str, Any]
) -> None:
    rows = [{"ms": "1", "a|b": "x;y"}, {"ms": "2", "a|b": ""}]
    assert rows_of(read("o.csv", text, 1, **options)) == rows


def test_separator_that_is_given_is_believed_and_lines_count_from_the_files_first(
    read: ReadAll,
) -> None:
    assert rows_of(read("o.csv", "a;b\n1\n", delimiter=",")) == [{"a;b": "1"}]
    for joined in ("sep=;", "a;b"):
        orders, fault = read("o.csv", f"sep=;\na;b\n1;2\n{joined}\n3;4\n")
        assert (len(orders), str(fault).partition(" was")[0]) == (1, "line 4: row")
    found = read("o.csv", "sep=;\na;b\n1;2\nsep=;\na;b\n3;4\n", header_again="skip")
    assert rows_of(found) == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


def test_file_cut_off_while_compressed_yields_whole_rows_only(write: Write, read: ReadAll) -> None:
    rows = "".join(f"{number},{random.Random(number).random()}\n" for number in range(30_000))
    path = write("o.csv.gz", "n,r\n" + rows)
    path.write_bytes(path.read_bytes()[:-100_000])
    orders, fault = read("o.csv.gz", None)
    assert "cut off" in str(fault)
    assert 0 < len(orders) < 30_000
    assert [values(order)["n"] for order in orders] == [str(n) for n in range(len(orders))]
