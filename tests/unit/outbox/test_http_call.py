"""The small HTTP client, against servers that answer badly."""

import ssl
from pathlib import Path

import pytest
import trustme

from chain_kernel.errors import RetryError, SettingError
from outbox.http_call import ANSWER_BYTES_MAX, CallRefused, call_json, shown_url
from tests.unit.outbox.answer_server import answering


async def test_call_sends_json_with_the_token_and_returns_the_answer() -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    async with answering(answer) as (url, seen):
        answered = await call_json("POST", f"{url}/check?a=1", "secret", {"ids": [1]}, 10)
    assert (answered.status, answered.body) == (200, b"{}")
    assert seen[0].startswith(b"POST /check?a=1 HTTP/1.1\r\n")
    assert b"Bearer secret" in seen[0]
    assert seen[0].endswith(b'{"ids":[1]}')


async def test_server_whose_certificate_is_not_trusted_is_sent_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    async with answering(answer, tls=tls) as (url, seen):
        with pytest.raises(RetryError, match="certificate"):
            await call_json("POST", url, "secret", {}, 10)
        assert not seen
        # The authorities of the system, which the environment may name.
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert (await call_json("POST", url, "secret", {}, 10)).body == b"{}"


async def test_call_shows_its_secrets_in_no_log_and_to_no_proxy(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    caplog.set_level("INFO")
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (url, seen):
        await call_json("GET", f"{url}/x?token=abc", "s3cret", None, 10)
    assert b"Bearer s3cret" in seen[0]
    assert "abc" not in caplog.text
    assert "s3cret" not in caplog.text


async def test_refusal_is_reported_with_status_and_body_and_not_the_query() -> None:
    answer = b'HTTP/1.1 404 Not Found\r\nContent-Length: 11\r\n\r\n{"error":1}'
    async with answering(answer) as (url, _):
        with pytest.raises(CallRefused, match="404") as caught:
            await call_json("GET", f"{url}/x?token=abc", "", None, 10)
    assert (caught.value.status, caught.value.body) == (404, b'{"error":1}')
    assert "abc" not in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 429 Slow\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"y" * (ANSWER_BYTES_MAX + 1),
    ],
    ids=["nothing", "no-http", "half", "500", "429", "redirect", "long-header", "long-body"],
)
async def test_answer_that_is_none_may_be_asked_for_again(answer: bytes) -> None:
    async with answering(answer) as (url, _):
        with pytest.raises(RetryError):
            await call_json("POST", url, "", {}, 10)


async def test_server_that_says_nothing_is_given_up_at_the_deadline() -> None:
    async with answering(hangs=True) as (url, _):
        with pytest.raises(RetryError, match=r"no answer within 0\.05 s"):
            await call_json("POST", url, "", {}, 0.05)


async def test_nobody_there_may_be_asked_again_and_a_bad_url_not() -> None:
    with pytest.raises(RetryError):
        await call_json("POST", "http://127.0.0.1:1/", "", {}, 10)
    with pytest.raises(SettingError, match="http or https"):
        await call_json("POST", "file:///etc/passwd", "", {}, 10)


def test_shown_url_has_no_secret() -> None:
    assert shown_url("https://user:pw@host/p?token=x") == "host/p"
    assert shown_url("https://host/p") == "https://host/p"
