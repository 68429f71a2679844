"""The examples that end the help of each command: real lines, by the command that they show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import click

EXAMPLES: Final = {
    "": (
        'chainctl stack up && eval "$(chainctl stack env)"',
        "chainctl doctor",
        "chainctl sequence --chain 1 --input orders.csv",
    ),
    "demo": (
        "chainctl demo",
        "chainctl demo --input orders.csv.xz --loss 0.3 --seed 7",
    ),
    "stack up": ('chainctl stack up && eval "$(chainctl stack env)"',),
    "stack down": ("chainctl stack down",),
    "stack status": ("chainctl stack status",),
    "stack env": ('eval "$(chainctl stack env)"',),
    "stack reset": ("chainctl stack reset", "chainctl stack reset --yes"),
    "schema print": ("chainctl schema print > schema.sql", "chainctl schema print --part outbox"),
    "schema apply": ("chainctl schema apply", "chainctl schema apply --part inbox"),
    "schema check": ("chainctl schema check --own-role reports",),
    "schema upgrade": (
        "chainctl schema upgrade --dry-run",
        "chainctl schema upgrade --part outbox",
        "chainctl schema upgrade --finish",
    ),
    "grants print": ("chainctl grants print | psql --single-transaction orders",),
    "chain create": (
        "chainctl chain create 1",
        "chainctl chain create 2 --topic orders.eu --partition-ids 90596966400000",
    ),
    "chain list": ("chainctl chain list --rows",),
    "chain verify-mark list": ("chainctl chain verify-mark list --chain 1",),
    "chain verify-mark revoke": (
        'chainctl chain verify-mark revoke --chain 1 --from 5000 --reason "backup restored"',
    ),
    "sequence": (
        "chainctl sequence --chain 1 --input orders.csv.gz --key-column order_id",
        "chainctl sequence --chain 1 --intake-topic orders --standby --http 9100",
        "zcat orders.csv.gz | chainctl sequence --chain 1 --input - --input-name orders.csv",
    ),
    "receive": (
        "chainctl receive --chain 1 --output journal.jsonl",
        "chainctl receive --chain 1 --output journal.jsonl --name audit --follow",
        "chainctl receive --chain 1 --output new.jsonl --until-idle 30s --decode msgpack",
    ),
    "fill": ("chainctl fill --chain 1 --after 5000 --until 6000 --decode msgpack | jq .payload",),
    "seal export": (
        "chainctl seal export --chain 1",
        "chainctl seal export --to /mnt/vault/seals --sign /etc/orderchain/seal.key --every 1h",
    ),
    "seal key": ("chainctl seal key /etc/orderchain/seal.key",),
    "seal show": ("chainctl seal show /mnt/vault/seals/*.json",),
    "verify": (
        "chainctl verify --chain 1 --source database --source journal:journal.jsonl",
        "chainctl verify --all-chains --source database --since-verified --report today.html",
        "chainctl verify --chain 1 --source database --source topic --follow --checkpoint /srv/v1",
    ),
    "archive": (
        "chainctl archive --chain 1 --archive /srv/archive",
        "chainctl archive --chain 1 --archive /srv/archive --check",
    ),
    "retention": (
        "chainctl retention --chain 1 --archive /srv/archive --until 20000000 --dry-run",
        'chainctl retention --chain 1 --archive /srv/archive --until 5000 --drop --reason "disk"',
    ),
    "repair": (
        'chainctl repair --chain 1 --from topic --reason "page was overwritten" --dry-run',
        'chainctl repair --chain 1 --from archive:/srv/archive --reason "partition was dropped"',
        'chainctl repair --chain 1 --from topic --expect-seals /mnt/seals --reason "restored"',
    ),
    "status": ("chainctl status --chain 1", "chainctl status --chain 1 --watch 2s"),
    "top": ("chainctl top", "chainctl top --once --json"),
    "leader": ("chainctl leader --chain 1",),
    "step-down": ('chainctl step-down --chain 1 --reason "new release" --wait 30s',),
    "takeover": ('chainctl takeover --chain 1 --reason "the leader hangs" --wait 10s',),
    "receivers list": ("chainctl receivers list --chain 1",),
    "receivers forget": (
        'chainctl receivers forget old-matcher --chain 1 --reason "replaced in June"',
    ),
    "receivers move": (
        'chainctl receivers move matcher --chain 1 --to 5000 --reason "replay" --dry-run',
    ),
    "receivers reset": (
        'chainctl receivers reset matcher --chain 1 --reason "new book" --dry-run',
    ),
    "lag": (
        "chainctl lag --chain 1 --watch 5s",
        "chainctl lag --chain 1 --max-seconds 30s --max-rows 100000",
    ),
    "gaps": (
        "chainctl gaps --chain 1 --open --since 1h",
        "chainctl gaps --chain 1 --name matcher --sum",
    ),
    "unhalt": ('chainctl unhalt --chain 1 --name matcher --reason "verified, case 4711"',),
    "tail": ("chainctl tail --chain 1 --limit 5 --watch 2s",),
    "show": (
        "chainctl show 4711 --chain 1",
        "chainctl show 4711 --chain 1 --journal journal.jsonl --archive /srv/archive",
    ),
    "rejects": ("chainctl rejects --chain 1 --source topic:orders:0 --since 1h",),
    "acts": ("chainctl acts --chain 1 --since 7d",),
    "sizes": (
        "chainctl sizes --over 1d",
        "chainctl sizes --max-bytes 500GB --max-bytes log=20GB --max-bytes topic=100GB",
    ),
    "doctor": ("chainctl doctor", "chainctl doctor --chain 1 --json"),
    "console": (
        "chainctl console --report /var/lib/orderchain-verify/report.html",
        "chainctl console --host 0.0.0.0 --token-file /etc/orderchain/console-token",
    ),
    "outbox relay": ("chainctl outbox relay --retention-hours 3d --http 9101",),
    "outbox destination set": (
        "chainctl outbox destination set trades --topic trades --consumer clearing",
        "chainctl outbox destination set trades --resend-seconds 30s --payload-bytes-max 64KB",
    ),
    "outbox destination show": ("chainctl outbox destination show trades",),
    "outbox destination list": ("chainctl outbox destination list",),
    "outbox status": ("chainctl outbox status", "chainctl outbox status --overdue 5m --watch 10s"),
    "outbox list": (
        "chainctl outbox list --status abnormal",
        "chainctl outbox list --destination trades --older-than 1h",
    ),
    "outbox show": ("chainctl outbox show 0197f7e2-1111-7000-8000-000000000001",),
    "outbox acts": ("chainctl outbox acts --since 7d",),
    "outbox failed": ("chainctl outbox failed --limit 20",),
    "outbox retry": ('chainctl outbox retry --consumer clearing --reason "it is fixed"',),
    "outbox abandon": (
        "chainctl outbox abandon --id 0197f7e2-1111-7000-8000-000000000001 "
        '--reason "cancelled by phone"',
    ),
    "outbox resend": ('chainctl outbox resend --all --reason "consumer restored" --dry-run',),
    "outbox keep": ("chainctl outbox keep --history-bytes-max 2GB",),
    "outbox dead list": ("chainctl outbox dead list --consumer clearing --older-than 1d",),
    "outbox dead show": ("chainctl outbox dead show 0197f7e2-1111-7000-8000-000000000001",),
    "outbox dead acts": ("chainctl outbox dead acts --since 7d",),
    "outbox dead retry": ('chainctl outbox dead retry --all --reason "handler is fixed"',),
    "outbox dead abandon": (
        "chainctl outbox dead abandon --why 'refused by the handler' --reason \"test data\"",
    ),
    "messages serve": ("chainctl messages serve --clients /etc/orderchain/clients.toml",),
    "messages token": ("chainctl messages token",),
    "config show": ("chainctl config show",),
    "completion": (
        'eval "$(chainctl completion bash)"',
        "chainctl completion fish > ~/.config/fish/completions/chainctl.fish",
    ),
    "bench": ("chainctl bench --quick", "chainctl bench --only comparison --minutes 2h --resume"),
}
"""By the words after `chainctl`; a test has each one read as a call would read it."""


GROUP_LINES: Final = 3


def examples_of(path: str) -> tuple[str, ...]:
    """Return the examples of a command; of a group the first one of each of its first commands."""
    if path in EXAMPLES:
        return EXAMPLES[path]
    first: dict[str, str] = {}
    for name, lines in EXAMPLES.items():
        if name.startswith(f"{path} "):
            first.setdefault(name.removeprefix(f"{path} ").partition(" ")[0], lines[0])
    return tuple(first.values())[:GROUP_LINES]


def write_examples(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the examples of the command of `ctx`, each on a line of its own, however long."""
    lines = examples_of(ctx.command_path.partition(" ")[2])
    if not lines:
        return
    with formatter.section("Examples"):
        for line in lines:
            formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
