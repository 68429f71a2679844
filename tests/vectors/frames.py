"""Makes the frames of `frames.json` again, from headers and rows.

    python -m tests.vectors.frames

It does not use the codec: the bytes are laid out here once more, and the MAC is made in one piece.
A published vector is never changed, so this is for new vectors, and for a new version of the wire.
"""

import json
from pathlib import Path
from struct import pack
from typing import Any

import msgspec
from blake3 import blake3

VERSION = 2
MAC_BYTES = 16
FIELDS_END = 140
ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "tests" / "vectors" / "frames.json"


def mac_of(body: bytes, fields: bytes, key: bytes) -> bytes:
    """The MAC over a body and a header that lacks it."""
    header_bytes = pack(">H", len(fields) + MAC_BYTES)
    return blake3(body + fields + header_bytes, key=key).digest(MAC_BYTES)


def rows_of(vector: dict[str, Any]) -> list[list[Any]]:
    """The rows of a vector, each as its event is encoded."""
    return [[*row[:4], bytes.fromhex(row[4])] for row in vector["rows"]]


def frame_of(vector: dict[str, Any], key: bytes) -> bytes:
    """The record of a vector, whose `appended` is between the fields and the MAC."""
    header, appended = vector["header"], bytes.fromhex(vector["appended"])
    rows = rows_of(vector)
    body = msgspec.msgpack.encode(rows) if rows else b""
    fields = (
        b"OCHN"
        + bytes([VERSION, (not rows) + 2 * header["is_batch_end"]])
        + pack(">H", FIELDS_END + len(appended) + MAC_BYTES)
        + pack(">III", header["chain_id"], header["count"], len(body))
        + pack(">qq", header["epoch"], header["publisher_epoch"])
        + bytes.fromhex(header["publisher_nonce"])
        + pack(">qqq", header["first_pid"], header["first_id"], header["last_id"])
        + bytes.fromhex(header["seal_before"] + header["seal_after"])
        + appended
    )
    return fields + mac_of(body, fields, key) + body


def refused_frames(frame: bytes, key: bytes) -> dict[str, bytes]:
    """What is to be refused, by name, made of a frame that is not."""
    end = FIELDS_END + MAC_BYTES

    def changed(at: int, value: bytes, body: bytes = frame[end:]) -> bytes:
        fields = frame[:at] + value + frame[at + len(value) : FIELDS_END]
        return fields + mac_of(body, fields, key) + body

    other_body = frame[end:].replace(b"\x95\x01", b"\x95\x02", 1)
    return {
        "cut off in the header": frame[:100],
        "a later version": changed(4, bytes([VERSION + 1])),
        "cut off in the body": frame[:-2],
        "a byte after the body": frame + b"\0",
        "one bit flipped in the payload": frame[:-1] + bytes([frame[-1] ^ 1]),
        "signed with another key": frame[:FIELDS_END]
        + mac_of(frame[end:], frame[:FIELDS_END], bytes(32))
        + frame[end:],
        "first_pid equal to first_id": changed(52, pack(">q", 1)),
        "the body's id is not the header's": changed(0, b"", other_body),
    }


def main() -> None:
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))
    key = bytes.fromhex(vectors["frame_key"])
    for vector in vectors["frames"]:
        vector["frame"] = frame_of(vector, key).hex()
    made = refused_frames(bytes.fromhex(vectors["frames"][0]["frame"]), key)
    for vector in vectors["refused"]:
        if vector["name"] in made:
            vector["frame"] = made[vector["name"]].hex()
    text = json.dumps(vectors, indent=2, ensure_ascii=False) + "\n"
    VECTORS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
