"""Places by URL: none that holds a password gets further than its own check, and none is shown."""

from collections.abc import Callable
from unittest.mock import ANY

import pytest

from chain_kernel.errors import SettingError
from chain_verifier.config import JournalSource, ParquetSource, VerifyRequest, require_sound
from chain_verifier.dataframe.stored import read_states
from chain_verifier.places import UrlPlace, checked_url, place_of, require_no_password
from chain_verifier.sources.options import ChainOptions
from chainctl.exits import error_line, traceback_text
from chainctl.main import main

WITH_PASSWORDS = [
    "s3://KEY:SESAME@bucket/x",
    "S3A://KEY:SESAME@bucket",
    "s3://KEY:SES/SESAME@bucket/x",
    "s3://KEY:12/SESAME@bucket/x",
    "s3://KEY:SES?SESAME@bucket/x",
    "s3://KEY:SES#SESAME@bucket/x",
    "s3://KEY:SES%ZZSESAME@bucket/x",
    "s3://KEY:SES SESAME@bucket/x",
    "s3://KEY%3ASESAME@bucket/x",
    "s3://KEY%3ASES/SESAME@bucket/x",
    "s3://KEY%3ASES?SESAME@bucket/x",
    "s3a:/KEY:SESAME@bucket/x",
    "s3a:/KEY%3ASES?SESAME@bucket/x",
    "s3a:///KEY:SES/SESAME@bucket/x",
    "s3://KEY:SESAME@",
    "s3://KEY:SESAME@a[b",
    "s3://KEY:SESAME@bucket:99999/x",
    "s3://KEY:SESAME",
    "s3://bucket/x?endpoint_override=http://u:SESAME@host",
    "abfs://c@a.example/x?client_secret=SESAME",
    "abfs://c@a.example/x?sv=1&sig=SESAME",
    *(
        f"s3://bucket/x?{name}=SESAME"
        for name in (
            "key",
            "apikey",
            "account_key",
            "AWSAccessKeyId",
            "encryptionKey",
            "sas_key_1",
            "SIG",
            "X-Amz-Signature",
            "session_token",
        )
    ),
    "odd://KEY:SESAME@host/x",
    "file://u:SESAME@host/x",
]
DOORS: dict[str, Callable[[str], object]] = {
    "place": lambda url: place_of("--archive", url),
    "journal": lambda url: JournalSource(path=url),
    "Parquet": lambda url: ParquetSource(path=url),
    "archive of a frame": lambda url: ChainOptions.of({"source": f"archive:{url}"}),
    "states": lambda url: read_states(ANY, f"parquet:{url}", ANY, 1),
    "states of no kind": lambda url: read_states(ANY, f"csv:{url}", ANY, 1),
    "findings": lambda url: require_sound(
        [VerifyRequest(chain_id=1, sources=(ParquetSource(path="/nowhere"),), findings_folder=url)]
    ),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("url", WITH_PASSWORDS)
def test_url_with_a_password_is_refused_by_each_door_without_showing_it(
    url: str, door: str
) -> None:
    with pytest.raises(SettingError) as refused:
        DOORS[door](url)
    assert "SES" not in str(refused.value), "a part of it is a secret, too"
    assert url.partition(":")[0] in str(refused.value)


@pytest.mark.parametrize("url", ["s3://a[b", "s3://host:port/x", *WITH_PASSWORDS])
def test_command_refuses_such_a_url_in_one_line(
    capsys: pytest.CaptureFixture[str], url: str
) -> None:
    table = ("verify", "--id", "seq", "--source")
    for arguments in (
        ("archive", "--chain", "1", "--archive", url),
        ("verify", "--chain", "1", "--source", f"parquet:{url}"),
        *((*table, f"table:{name}") for name in (f"parquet:{url}", f"csv:{url}", f"orc.`{url}`")),
        (*table, f"table:json:{url}", "--source", "database"),
    ):
        assert main([*arguments]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "SESAME" not in error
    assert main(["verify", "--chain", "1", "--source", url]) == 2
    assert "SESAME" not in capsys.readouterr().err


@pytest.mark.parametrize("around", ["%s", "cannot read '%s' (a@b)", '{"path":"%s","of":"a@b"}'])
@pytest.mark.parametrize("url", WITH_PASSWORDS)
def test_error_of_others_that_names_such_a_url_is_shown_without_its_password(
    url: str, around: str
) -> None:
    error = OSError(around % url)
    for text in (error_line(error), traceback_text(error)):
        assert "SES" not in text


def test_names_that_only_look_like_logins_are_places() -> None:
    for path in ("x@y", "a:b@c/d", "passwords", "k=v"):
        assert str(place_of("place", f"file:///srv/{path}")) == f"/srv/{path}"
        found = place_of("place", f"s3://bucket/{path}?region=eu-central-1&scheme=http")
        assert isinstance(found, UrlPlace)
        assert str(found) == f"s3://bucket/{path}"
    assert str(place_of("place", "s3://a@bucket/x?region=eu")) == "s3://bucket/x"
    for path in ("parquet:/srv/a:b@c", "json:a:b@c", "orc:file:/srv/a:b@c"):
        require_no_password("place", path)
    for url in (
        "hdfs://nn:8020/user/a@b/x",
        "dbfs:/mnt/a@b/x",
        "s3://bucket/x?monkey=1&keyspace=2&design=3",
    ):
        assert checked_url("place", url).geturl() == url
