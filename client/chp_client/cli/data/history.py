"""`chp history`: the versions of a key that the servers' log still holds.

2026-11-22 18:40:15.250Z  3.1042  set      1.0832   by 3f1c9a0b77d2...
2026-11-22 18:41:02.110Z  3.1077  expired
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..completion import keys as offered
from ..faults import NotFound
from ..out import Out
from ..settings import CliSettings, examples, pass_settings, shared
from ..store import writing
from ..text import escape, show_revision, show_value, value_fields

if TYPE_CHECKING:
    from chp_client import Version


@click.command(short_help="Print the versions of a key that the log still holds.", epilog=examples("""
    chp history /rates/EUR/USD              # the oldest first
    chp history /config/motd --limit 1      # who changed it last, and when
    chp history --json /config/motd | jq -r .by
"""))  # fmt: skip
@click.argument("key", shell_complete=offered)
@click.option(
    "--limit", default=1000, show_default=True, type=click.IntRange(1, 10_000), help="At most so many, the last ones."
)
@shared
@pass_settings
def history(settings: CliSettings, key: str, limit: int) -> None:
    """Print what KEY was, since when, and by which client, as far back as the servers' log goes.

    The client is named as `chp leases` names owners, if the servers took its set alone. Exit code 1 if there is none.
    """
    out = settings.out
    with writing(settings) as store:
        versions = store.history(key, limit)
    for version in versions:
        if out.json:
            out.record(_fields(version))
        else:
            out.line(_line(out, version))
    if not versions:
        raise NotFound(f"the log has no version of {escape(key)!r}; `chp get` prints what it is now")


def _kind(version: Version) -> str:
    return "expired" if version.expired else version.operation


def _fields(version: Version) -> dict[str, Any]:
    fields: dict[str, Any] = {"op": "del" if version.value is None else "set", "key": version.key}
    if version.value is not None:
        fields.update(value_fields(version.value))
    if version.expired:
        fields["expired"] = True
    if version.ttl is not None:
        fields["ttl"] = version.ttl
    when = version.when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {**fields, "revision": show_revision(version.revision), "when": when, "by": version.by}


def _line(out: Out, version: Version) -> str:
    when = f"{version.when:%Y-%m-%d %H:%M:%S}.{version.when.microsecond // 1000:03}Z"
    parts = [out.style(when, dim=True), show_revision(version.revision), f"{_kind(version):7}"]
    if version.value is not None:
        parts.append(show_value(version.value))
    if version.ttl is not None:
        parts.append(f"ttl {version.ttl:g} s")
    if version.by is not None:
        parts.append(out.style(f"by {version.by}", dim=True))
    return "  ".join(parts).rstrip()


COMMANDS = (history,)
