"""Exported seals as files: written whole, signed, and refused where something was changed."""

from pathlib import Path

import msgspec
import pytest

from chain_kernel.errors import InputError, SettingError
from chain_verifier.seal_files import (
    SealFile,
    encoded,
    load,
    load_all,
    new_key,
    read_signing_key,
    signed,
    store,
)


def seal(row_id: int = 5, chain_id: int = 7) -> SealFile:
    return SealFile(
        version=1,
        chain_id=chain_id,
        id=row_id,
        seal="ab" * 32,
        committed_at="2026-01-02T03:04:05.000006Z",
        database_id="00112233-4455-6677-8899-aabbccddeeff",
        exported_at="2026-01-02T04:00:00.000000Z",
        exported_by="ann@vault",
    )


def test_stored_seal_is_read_back_and_leaves_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    path = store(folder, seal())
    assert load(path) == seal()
    assert [each.name for each in folder.iterdir()] == ["seal-7-0000000000000000005.json"]
    assert seal().kept().seal == bytes.fromhex("ab" * 32)


def test_seals_of_a_chain_come_in_the_order_of_ids(tmp_path: Path) -> None:
    for row_id in (100, 5, 20):
        store(tmp_path, seal(row_id))
    store(tmp_path, seal(1, chain_id=70))
    assert [each.id for each in load_all(tmp_path, 7)] == [5, 20, 100]
    with pytest.raises(InputError, match="exported seals of chain 8"):
        load_all(tmp_path, 8)


def test_signature_holds_until_anything_is_changed(tmp_path: Path) -> None:
    public = new_key(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    by_us = signed(seal(), read_signing_key(tmp_path / "key"))
    assert by_us.public_key == public
    path = store(tmp_path, by_us)
    assert load(path, [public]) == by_us
    for name, value in (
        ("id", 6), ("seal", "cd" * 32), ("committed_at", "2026-01-02T03:04:05.000007Z"),
        ("database_id", "x"), ("exported_at", "2026-01-02T05:00:00.000000Z"),
        ("exported_by", "eve@vault"), ("chain_id", 8),
    ):  # fmt: skip
        path.write_bytes(encoded(msgspec.structs.replace(by_us, **{name: value})))
        with pytest.raises(InputError, match="signature of"):
            load(path)


def test_key_of_somebody_else_and_no_signature_are_refused(tmp_path: Path) -> None:
    ours, theirs = new_key(tmp_path / "ours"), new_key(tmp_path / "theirs")
    path = store(tmp_path, signed(seal(), read_signing_key(tmp_path / "theirs")))
    assert load(path, [ours, theirs]).public_key == theirs
    with pytest.raises(InputError, match="public_key of"):
        load(path, [ours])
    with pytest.raises(InputError, match="public_key of"):
        load(store(tmp_path, seal(6)), [ours])


def test_bad_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "seal-7-1.json"
    path.write_text('{"version":1}')
    with pytest.raises(InputError, match="an exported seal"):
        load(path)
    path.write_bytes(encoded(seal()))
    with pytest.raises(InputError, match="the name seal-7-0000000000000000005"):
        load_all(tmp_path, 7)
    with pytest.raises(InputError, match="a file to read"):
        load(tmp_path / "none")


def test_key_file_is_never_overwritten_and_must_hold_a_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("nothing of ours")
    with pytest.raises(SettingError, match="a file to be created"):
        new_key(path)
    with pytest.raises(SettingError, match="a key that `seal key` made"):
        read_signing_key(path)
    with pytest.raises(SettingError, match="a file to read"):
        read_signing_key(tmp_path / "none")
