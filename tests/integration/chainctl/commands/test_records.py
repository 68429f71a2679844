"""`chainctl show`, `tail`, `sizes`, `status` and `doctor` over a chain with its topic."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import NodeNotReadyError, UnsupportedCodecError
from aiokafka.protocol.metadata import MetadataRequest

from chain_kernel.clients.kafka import TopicPartition, UnreadableRecord
from chain_kernel.sql import AUDITOR, GAP_READER, SEQUENCER_WRITER
from local_stack import PostgresServer
from tests.builders.orders import order_file
from tests.integration.chainctl.conftest import Admin, Call, Ctl, Refused, fill_chain
from tests.integration.chainctl.sizes import FILLED_ROWS
from tests.old_kafka import old_kafka
from tests.stored_pages import LET_TAMPER

Settings = dict[str, str]


def test_show_reports_all_that_is_stored_of_an_order(ctl: Ctl, filled_once: int) -> None:
    chain = ("--chain", filled_once)
    found = ctl.json("show", 7, *chain)
    assert (found["row"]["id"], found["row"]["pid"], found["row"]["key"]) == (7, 6, "o.csv#7")
    assert found["batch"]["first_id"] <= 7 <= found["batch"]["last_id"]
    assert len(found["batch"]["seal"]) == 64
    assert (found["published"], found["verified"]) == (True, None)
    shown = ctl("show", FILLED_ROWS, *chain)
    assert f"o.csv#{FILLED_ROWS}" in shown.out


def test_show_calls_no_order_published_that_the_topic_never_had(
    ctl: Ctl, filled: int, module_settings: Settings, postgres_server: PostgresServer
) -> None:
    name = urlsplit(module_settings["CHAINCTL_DATABASE"]).path.removeprefix("/")
    skip = f"INSERT INTO chain_skip VALUES ({filled}, 6, 8, 1)"  # noqa: S608 - a number
    postgres_server.execute(skip, database=name)
    found = {row_id: ctl.json("show", row_id, "--chain", filled)["published"] for row_id in (6, 7)}
    assert found == {6: True, 7: False}
    change = "UPDATE chain_head SET is_published = false"  # as a leader without broker does
    postgres_server.execute(f"{change} WHERE chain_id = {filled}", database=name)
    assert ctl.json("show", 6, "--chain", filled)["published"] is None
    assert "\npublished: none\n" in ctl("show", 6, "--chain", filled).out


def test_show_of_an_id_that_no_row_has_names_its_neighbours(ctl: Ctl, filled_once: int) -> None:
    done = ctl("show", FILLED_ROWS + 1, "--chain", filled_once)
    assert done.code == 1, done
    assert "\npublished: no\n" in done.out
    assert f"has no row {FILLED_ROWS + 1}; the row before is {FILLED_ROWS}, " in done.err
    assert done.err.endswith("the row after none\n")
    done = ctl("show", 0, "--chain", filled_once)
    assert (done.code, done.out) == (2, ""), "no row has it, archived or not"


def test_show_of_a_row_at_the_end_of_its_page_names_the_row_after_it(
    call: Call, database: str, module_settings: Settings, free_chain: int, tmp_path: Path
) -> None:
    settings = {**module_settings, "CHAINCTL_DATABASE": database}
    chain, orders = ("--chain", free_chain), order_file(tmp_path / "o.csv", 20)
    assert call("chain", "create", free_chain, settings=settings).code == 0
    sequence = ("sequence", *chain, "--input", orders, "--batch-rows", 10)
    assert call(*sequence, settings=settings).code == 0
    near = {
        row_id: json.loads(call("show", row_id, *chain, "--json", settings=settings).out)[
            "neighbours"
        ]
        for row_id in (1, 10, 11, 20)
    }
    assert near == {
        1: {"before": None, "after": 2},
        10: {"before": 9, "after": 11},
        11: {"before": 10, "after": 12},
        20: {"before": 19, "after": None},
    }


def test_show_of_a_row_that_was_removed_says_that_its_batch_lacks_it(
    call: Call, database: str, module_settings: Settings, free_chain: int,
    postgres_server: PostgresServer, tmp_path: Path,
) -> None:  # fmt: skip
    settings = {**module_settings, "CHAINCTL_DATABASE": database}
    chain = free_chain
    assert call("chain", "create", chain, settings=settings).code == 0
    fill_chain(settings, chain, tmp_path)
    name = urlsplit(database).path.removeprefix("/")
    deleted = f"DELETE FROM chain_event WHERE chain_id = {chain} AND id = 7"  # noqa: S608 - a number
    postgres_server.execute(LET_TAMPER + deleted, database=name)
    done = call("show", 7, "--chain", chain, settings=settings)
    assert done.code == 1, done
    assert "has no row 7; the row before is 6, the row after 8; " in done.err
    counts = re.search(r"; ([\d,]+) of the ([\d,]+) rows of its batch are stored: verify", done.err)
    assert counts is not None, done
    stored, committed = (int(count.replace(",", "")) for count in counts.groups())
    assert stored == committed - 1


def test_tail_shows_the_last_orders_in_their_order(ctl: Ctl, filled_once: int) -> None:
    rows = ctl.json("tail", "--chain", filled_once, "--limit", 3)
    assert [row["id"] for row in rows] == [FILLED_ROWS - 2, FILLED_ROWS - 1, FILLED_ROWS]
    late = ("tail", "--chain", filled_once, "--after", FILLED_ROWS - 1)
    assert [row["id"] for row in ctl.json(*late)] == [FILLED_ROWS]


def test_sizes_is_a_check_for_monitors(
    ctl: Ctl, call: Call, refused: Refused, module_settings: Settings,
    postgres_server: PostgresServer, filled_once: int,
) -> None:  # fmt: skip
    found = ctl.json("sizes", "--over", "1d")
    bytes_of = {each["table"]: each["bytes"] for each in found["tables"]}
    assert min(bytes_of["chain_page"], found["log"]["bytes"]) > 0
    heads = next(each for each in found["tables"] if each["table"] == "chain_head")
    assert heads["about_rows"] > 0  # also of a table that was never analyzed
    grown = next(each for each in found["growth"] if each["chain"] == filled_once)
    assert grown["rows"] == FILLED_ROWS
    assert min(grown["bytes_per_second"], found["log"]["bytes_per_second"]) > 0
    done = ctl("sizes", "--max-bytes", "1KB")
    assert (done.code, "the database has " in done.err, "above 1,000" in done.err) == (
        1,
        True,
        True,
    )
    ctl.done("sizes", "--max-bytes", "9TB")
    assert "'5XB', expected a size" in refused("sizes", "--max-bytes", "5XB")
    name = urlsplit(module_settings["CHAINCTL_DATABASE"]).path.removeprefix("/")
    auditor = {"CHAINCTL_DATABASE": postgres_server.dsn(AUDITOR, name)}
    assert (
        json.loads(call("sizes", "--json", settings=auditor).out)["log"]["bytes"] is None
    )  # only for pg_monitor


@pytest.mark.parametrize("codec", ["snappy", "lz4", "zstd", "gzip"])
def test_sizes_measures_a_topic_that_the_broker_compresses(
    ctl: Ctl, module_settings: Settings, free_chain: int, tmp_path: Path, admin: Admin, codec: str
) -> None:
    topic = f"sized-{codec}"
    config = {"compression.type": codec}
    admin(lambda client: client.create_topics([NewTopic(topic, 1, 1, topic_configs=config)]))
    ctl.done("chain", "create", free_chain, "--topic", topic)
    fill_chain(module_settings, free_chain, tmp_path)
    found = ctl.json("sizes")
    measured = next(each for each in found["topics"] if each["topic"] == topic)
    assert measured["records"] > 0
    assert measured["about_bytes"] > 10 * FILLED_ROWS
    assert topic in ctl("sizes").out


def test_sizes_without_a_codec_or_a_broker_shows_the_database_and_says_why(
    ctl: Ctl, call: Call, module_settings: Settings, filled_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with monkeypatch.context() as without:
        without.setattr("chain_kernel.clients.kafka.AIOKafkaConsumer.getmany", unreadable)
        done = ctl("sizes")
    assert (done.code, "chain_page" in done.out) == (0, True), done
    assert "topics are not measured: compression of the record of topic " in done.err
    away = module_settings | {"CHAINCTL_KAFKA": "127.0.0.1:1"}
    done = call("sizes", settings=away)
    assert (done.code, "chain_page" in done.out) == (0, True), done
    assert "topics are not measured: kafka" in done.err


async def unreadable(*_: object, **__: object) -> None:
    cause = UnsupportedCodecError("Libraries for zstd compression codec not found")
    raise UnreadableRecord(TopicPartition("orders", 0), 0, 1, cause, is_damaged=False)


def test_status_without_a_chain_shows_each_with_its_leader(ctl: Ctl, filled_once: int) -> None:
    found = ctl.json("status")
    mine = next(each for each in found["chains"] if each["chain"] == filled_once)
    assert (mine["leader_state"], mine["head_persisted"]) == ("handed over", FILLED_ROWS)
    assert "LEADER_STATE" in ctl("status").out


def test_doctor_says_what_would_fail_and_what_to_do(
    ctl: Ctl, call: Call, module_settings: Settings, filled_once: int
) -> None:
    well = ctl.json("doctor", "--chain", filled_once)
    states = {each["what"]: each["state"] for each in well}
    assert {"database", "schema", "clock", "kafka", f"topic orderchain.{filled_once}"} <= set(
        states
    )
    assert "failed" not in states.values()
    assert states["login"] == "warning"  # a superuser
    found = {each["what"]: each["found"] for each in well}
    assert found["disk of the database"] == "it has room"
    assert re.fullmatch(
        r"3\.\d+\.\d+, orderchain \S+, hot functions in (python|native)", found["python"]
    )
    assert found["commit: log disk"] == "pg_wal is on the file system of the tables"
    assert found["commit: flush"] == "fdatasync"
    assert re.fullmatch(r"min_wal_size is [\d,]+ MiB", found["commit: log files"])
    assert re.fullmatch(
        r"the kernel lets [\d,]+ MiB gather before it writes", found["commit: write-back"]
    )
    broken = {**module_settings, "CHAINCTL_KAFKA": "127.0.0.1:1"}
    done = call("doctor", "--chain", filled_once + 1, "--json", settings=broken)
    assert done.code == 1, done
    failed = {each["what"]: each for each in json.loads(done.out) if each["state"] == "failed"}
    assert set(failed) == {f"chain {filled_once + 1}", "kafka"}
    away = {**broken, "CHAINCTL_DATABASE": "postgresql://postgres@127.0.0.1:1/orders"}
    found = json.loads(call("doctor", "--json", settings=away).out)
    without = {each["what"] for each in found if each["state"] == "failed"}
    assert without.isdisjoint({"schema", "chains"})  # they could not be looked at
    assert {"database", "kafka"} <= without
    assert failed[f"chain {filled_once + 1}"]["to_do"] == f"chainctl chain create {filled_once + 1}"


def test_doctor_does_not_guess_at_a_disk_that_its_login_may_not_see(
    call: Call, module_settings: Settings, postgres_server: PostgresServer
) -> None:
    name = urlsplit(module_settings["CHAINCTL_DATABASE"]).path.removeprefix("/")
    auditor = {**module_settings, "CHAINCTL_DATABASE": postgres_server.dsn(AUDITOR, name)}
    found = lines_of(call, auditor)
    assert found["commit: flush"]["found"] == "fdatasync"
    assert found["commit: log disk"]["state"] == found["commit: write-back"]["state"] == "ok"
    assert found["commit: log disk"]["found"].startswith("cannot see: ")


def test_doctor_says_whether_kafka_is_new_enough_and_refuses_an_old_one_in_one_line(
    call: Call, module_settings: Settings, filled_once: int
) -> None:
    found = lines_of(call, module_settings, "--chain", filled_once)["kafka"]
    assert found == {
        "what": "kafka", "state": "ok", "found": "3.7 or newer", "to_do": "",
    }  # fmt: skip
    with old_kafka() as address:
        old = {**module_settings, "CHAINCTL_KAFKA": address}
        done = call("doctor", "--chain", filled_once, settings=old)
    assert done.code == 1
    (line,) = [line for line in done.out.splitlines() if line.startswith("failed")]
    what, found, to_do = re.split(r" {2,}", line)[1:]
    assert (what, found) == ("kafka", f"older than 3.7: {address}")
    assert to_do == "upgrade these brokers: Kafka 3.7 or newer is needed"


def test_broker_that_fails_in_mid_look_is_one_line_of_doctor_and_of_a_new_chain(
    ctl: Ctl, call: Call, module_settings: Settings, filled_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    send = AIOKafkaAdminClient._send_request

    async def fail(client: AIOKafkaAdminClient, request: object, *rest: object) -> object:
        if isinstance(request, MetadataRequest):
            raise NodeNotReadyError("Attempt to send a request to node which is not ready")
        return await send(client, request, *rest)

    monkeypatch.setattr(AIOKafkaAdminClient, "_send_request", fail)
    found = lines_of(call, module_settings, "--chain", filled_once)
    assert found["kafka"]["state"] == found["schema"]["state"] == "ok"
    topic = found[f"topic orderchain.{filled_once}"]
    assert topic["state"] == "failed"
    done = ctl("chain", "create", filled_once + 1)
    assert done.code == 3, done
    for line in (topic["found"], done.err):
        assert f"kafka: {module_settings['CHAINCTL_KAFKA']}: NodeNotReadyError: " in line


def test_doctor_sends_a_record_and_says_that_a_broker_refuses_it(
    ctl: Ctl, call: Call, module_settings: Settings, free_chain: int, admin: Admin
) -> None:
    ctl.done("chain", "create", free_chain)
    topic = f"orderchain.{free_chain}"
    found = lines_of(call, module_settings, "--chain", free_chain)
    assert found["records"]["found"] == "1 topic acknowledged one"
    limit = ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "10"})
    admin(lambda client: client.alter_configs([limit]))
    found = lines_of(call, module_settings, "--chain", free_chain)
    refused = found[f"records of topic {topic}"]
    assert refused["state"] == "failed"
    assert "the broker refused a record" in refused["found"]
    assert "max.message.bytes 10: not every order fits" in found[f"topic {topic}"]["found"]
    # Readers pass over what it sent.
    output = ("receive", "--chain", free_chain, "--output", "-")
    ctl.done(*output)
    verify = ("verify", "--chain", free_chain, "--source", "database", "--source", "topic")
    ctl.done(*verify, "--local")


def lines_of(call: Call, settings: Settings, *arguments: object) -> dict[str, Any]:
    """What `doctor` says, by what it looked at."""
    done = call("doctor", "--json", *arguments, settings=settings)
    return {each["what"]: each for each in json.loads(done.out)}


@pytest.mark.parametrize(("value", "state"), [("off", "failed"), ("local", "ok")])
def test_doctor_judges_the_durability_of_commits_as_a_start_does(
    call: Call, stack_environment: Settings, postgres_server: PostgresServer,
    database_name: str, value: str, state: str,
) -> None:  # fmt: skip
    postgres_server.execute(
        f"ALTER DATABASE {database_name} SET synchronous_commit = {value}", database=database_name
    )
    assert lines_of(call, stack_environment)["durability"]["state"] == state


def test_doctor_names_what_a_login_may_not_do(
    call: Call, module_settings: Settings, postgres_server: PostgresServer, filled_once: int,
    template: Callable[..., str],
) -> None:  # fmt: skip
    name = urlsplit(module_settings["CHAINCTL_DATABASE"]).path.removeprefix("/")
    postgres_server.execute("CREATE ROLE stranger LOGIN PASSWORD 'a-password-of-tests'")
    port = postgres_server.config.port
    stranger = f"postgresql://stranger:a-password-of-tests@127.0.0.1:{port}/{name}"
    try:
        found = lines_of(call, {**module_settings, "CHAINCTL_DATABASE": stranger})
    finally:
        postgres_server.execute("DROP ROLE stranger")
    assert found["database"]["state"] == found["durability"]["state"] == "ok"
    assert "with the rights of none of our roles" in found["login"]["found"]
    assert {found[each]["state"] for each in ("login", "schema", "chains")} == {"failed"}
    writer = {**module_settings, "CHAINCTL_DATABASE": postgres_server.dsn(SEQUENCER_WRITER, name)}
    found = lines_of(call, writer)
    assert found["login"]["found"] == "sequencer_writer, with the rights of sequencer_writer"
    assert found["schema"]["state"] == "ok"
    assert (found["chains"]["state"], "--audit-database" in found["chains"]["to_do"]) == (
        "failed", True,
    )  # fmt: skip
    auditor = {**writer, "CHAINCTL_AUDIT_DATABASE": postgres_server.dsn(AUDITOR, name)}
    found = lines_of(call, auditor, "--chain", filled_once)
    assert found[f"leader of chain {filled_once}"]["state"] == "ok"
    assert found["audit database"]["found"].endswith(", as auditor")
    wrong = {**auditor, "CHAINCTL_GAP_DATABASE": postgres_server.dsn(AUDITOR, name)}
    found = lines_of(call, wrong)
    assert found["gap database 1"]["to_do"] == "GRANT gap_reader TO auditor"
    postgres_server.copy_database(template("chain"), other := f"{name}_other")
    reader = {**auditor, "CHAINCTL_GAP_DATABASE": postgres_server.dsn(GAP_READER, other)}
    found = lines_of(call, reader)
    assert "another database: " in found["gap database 1"]["found"]


def test_doctor_names_settings_that_are_none_and_a_file_that_others_can_read(
    call: Call, module_settings: Settings, tmp_path: Path
) -> None:
    path = tmp_path / "c.toml"
    path.write_text('callback_database = "postgresql://u:sesame@there/d"\nbatch_rows = 7\n')
    path.chmod(0o644)
    settings = {**module_settings, "CHAINCTL_CONFIG": str(path)}
    done = call("doctor", "--json", settings=settings)
    (line,) = [each for each in json.loads(done.out) if each["what"] == "settings"]
    assert (line["state"], line["to_do"]) == ("warning", f"chmod 600 {path}")
    path.chmod(0o600)
    found = lines_of(call, settings)["settings"]
    assert (found["state"], found["found"]) == ("ok", f"2 settings of {path}")
    misspelt = {**module_settings, "CHAINCTL_DATABSE": "x"}
    assert lines_of(call, misspelt)["settings"]["found"] == "CHAINCTL_DATABSE is no setting"


def test_doctor_names_receivers_and_marks_with_trouble_and_a_schema_that_was_changed(
    call: Call, module_settings: Settings, postgres_server: PostgresServer, filled_once: int
) -> None:
    name = urlsplit(module_settings["CHAINCTL_DATABASE"]).path.removeprefix("/")
    postgres_server.execute(
        "INSERT INTO receiver_halt (chain_id, receiver, at_id, reason, detail)"
        " SELECT chain_id, 'm', 7, 'ForkFound', 'x' FROM chain_head;"
        "INSERT INTO receiver_gap (chain_id, receiver, after_id, until_id, cause, outcome, source,"
        " row_count, found_at, duration) SELECT chain_id, 'g', 3, 5, 'start', 'missing', 'primary',"
        " 0, now(), '1s' FROM chain_head;"
        "INSERT INTO receiver_checkpoint (chain_id, receiver, head_delivered, batch_last_id, seal,"
        " epoch) SELECT chain_id, name, last_id, last_id, sha256(last_seal), 1 FROM chain_head,"
        " unnest(ARRAY['c', 'm']) AS name;"
        "INSERT INTO chain_verified (chain_id, after_id, until_id, seal, verified_by)"
        " SELECT chain_id, 0, last_id, sha256(last_seal), 'eve' FROM chain_head WHERE last_id > 0;"
        "ALTER TABLE chain_act ALTER COLUMN detail DROP NOT NULL",
        database=name,
    )
    try:
        found = lines_of(call, module_settings, "--chain", filled_once)
        postgres_server.execute("REVOKE INSERT ON chain_batch FROM sequencer_writer", database=name)
        revoked = lines_of(call, module_settings, "--chain", filled_once)["schema"]
    finally:
        postgres_server.execute(
            "GRANT INSERT ON chain_batch TO sequencer_writer;"
            "DELETE FROM receiver_gap WHERE receiver = 'g';"
            "DELETE FROM receiver_checkpoint WHERE receiver IN ('c', 'm');"
            "DELETE FROM chain_verified WHERE verified_by = 'eve';"
            "DELETE FROM receiver_halt; ALTER TABLE chain_act ALTER COLUMN detail SET NOT NULL",
            database=name,
        )
    halted = found[f"receiver m of chain {filled_once}"]
    assert (halted["state"], halted["found"]) == ("failed", "has halted: ForkFound at 7")
    assert f"--chain {filled_once}" in halted["to_do"]
    lacking = found[f"receiver g of chain {filled_once}"]
    assert (lacking["state"], "after 3 up to 5" in lacking["found"]) == ("failed", True)
    assert f"repair --chain {filled_once}" in lacking["to_do"]
    contradicted = found[f"receiver c of chain {filled_once}"]
    assert (contradicted["state"], contradicted["found"]) == (
        "failed", "the database contradicts its checkpoint: another seal",
    )  # fmt: skip
    mark = found[f"verified mark of chain {filled_once}"]
    assert (mark["state"], f"rows up to {FILLED_ROWS} are not" in mark["found"]) == ("failed", True)
    assert f"verify --chain {filled_once}" in mark["to_do"]
    assert (revoked["state"], revoked["found"].rpartition(": table")[2]) == (
        "failed", " chain_batch: role sequencer_writer may not INSERT, shipped: may",
    )  # fmt: skip
    assert found["schema"]["state"] == "warning"
    assert "1 difference from what was shipped: table chain_act: column" in found["schema"]["found"]
