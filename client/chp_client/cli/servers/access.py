"""`chp access`: who may do what, seen and changed on a live pair (SPEC.md, section 36).

Rules are one value. Each change reads it, edits it here, and gives it back on the number that it was read at, so that
of two who change it at once one is told to do it again. It is done when both servers have it.
"""

from __future__ import annotations

import difflib
import secrets
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from chp import access as rules
from chp.access import Document, Rules
from chp.errors import BadInput

from ...port.admin import Admin, AdminReply
from ..faults import Misused
from ..settings import CliSettings, examples, pass_settings, shared_for
from ..store import explained
from ..text import escape

ACCESS_S = 10.0
AGAIN_S = 0.1  # between looks for the server that serves
FILE_BYTES_MAX = 1 << 20
TOKEN = "chp_"  # so that whoever finds one knows what it is
TOKEN_BYTES = 32  # random
SAID_MIN = 4  # digits of a hash by which a token is revoked
WHAT = click.Choice([*rules.LISTS, "roles"])
NONE: Document = {"users": {}, "roles": {}}
Edit = Callable[[Document], Document]


@click.group(short_help="See and change who may do what.", epilog=examples("""
    chp access apply rules.toml --dry-run     # what would change
    chp access grant alice read /pub/ /ref/
    chp access test alice read /secret/
"""))  # fmt: skip
def access() -> None:
    """Users, roles and their rules. Without any, whoever has a key may do everything; with some, what they allow.

    A rule is read, write or consume of a prefix, which is '' or begins and ends with a slash; deny-read, deny-write and
    deny-consume win over them. The prefix of a group of a topic is /.chp/topics/TOPIC/GROUP/. An admin command is
    allowed by its name. It needs servers with keys, and both of them.
    """


@access.command(short_help="List the rules.")
@click.argument("name", required=False)
@shared_for(ACCESS_S)
@pass_settings
def show(settings: CliSettings, name: str | None) -> None:
    """List all rules, or those of one user or role."""
    with explained(settings), Admin(settings.servers, settings.patience(ACCESS_S)) as admin:
        document, facts, _ = _read(admin)
    shown = (
        document if name is None else {kind: {k: v for k, v in document[kind].items() if k == name} for kind in NONE}
    )
    if settings.out.json:
        named = Rules.of(document).names_consume
        settings.out.record({**shown, "number": facts["number"], "names_consume": named})
        return
    if not facts["number"]:
        settings.out.line("there are no rules: whoever is let in may do everything")
    for line in rules.lines(shown):
        settings.out.line(escape(line))
    if facts["number"]:
        settings.out.line(f"# {_of_groups(document)}")


def _of_groups(document: Document) -> str:
    """Return what allows groups of topics, which the whole of the rules decides."""
    return rules.BY_CONSUME if Rules.of(document).names_consume else rules.BY_READ


@access.command(short_help="Add a user, or take one away.")
@click.argument("name")
@click.option("--role", "roles", multiple=True, help="A role of the user's (several times: several).")
@click.option("--remove", is_flag=True, help="Take the user away, with all its rules.")
@shared_for(ACCESS_S)
@pass_settings
def user(settings: CliSettings, name: str, roles: tuple[str, ...], remove: bool) -> None:
    """Add a user, with roles if any are named, or take one away. Its key is a file of the servers' --keys."""
    if remove:
        _change(settings, lambda document: rules.without(document, "users", name))
    else:
        _change(settings, lambda document: rules.granted(document, "users", name, "roles", roles))


@access.command(short_help="Allow or deny something more.", epilog=examples("""
    chp access grant alice read /pub/ /ref/
    chp access grant alice admin status access
    chp access grant alice consume /.chp/topics/orders/billing/
    chp access grant --role reader deny-read /pub/internal/
    chp access grant alice roles reader
"""))  # fmt: skip
@click.argument("name")
@click.argument("what", type=WHAT)
@click.argument("words", nargs=-1, required=True, metavar="PREFIX|COMMAND|ROLE...")
@click.option("--role", is_flag=True, help="NAME is a role's.")
@shared_for(ACCESS_S)
@pass_settings
def grant(settings: CliSettings, name: str, what: str, words: tuple[str, ...], role: bool) -> None:
    """Add to what a user or a role may, or may not. Done when both servers have it.

    The first `consume` that any rule names takes the groups of all topics from users whom only `read` allows them.
    """
    _change(settings, lambda document: rules.granted(document, _kind(role), name, what, words))


@access.command(short_help="Take something of it back.")
@click.argument("name")
@click.argument("what", type=WHAT)
@click.argument("words", nargs=-1, required=True, metavar="PREFIX|COMMAND|ROLE...")
@click.option("--role", is_flag=True, help="NAME is a role's.")
@shared_for(ACCESS_S)
@pass_settings
def revoke(settings: CliSettings, name: str, what: str, words: tuple[str, ...], role: bool) -> None:
    """Take from what `grant` added. The next set and question are refused; who listens is cut off from it."""
    _change(settings, lambda document: rules.revoked(document, _kind(role), name, what, words))


@access.command(short_help="A bearer token of a user's, for the gateway.", epilog=examples("""
    chp access token alice                       # shown once; the pair keeps its hash
    chp access token alice --revoke 1a2b3c4d     # by the beginning of its hash, as `chp access show` has it
"""))  # fmt: skip
@click.argument("name")
@click.option("--revoke", metavar="HASH", help="Take back the token whose hash begins so.")
@shared_for(ACCESS_S)
@pass_settings
def token(settings: CliSettings, name: str, revoke: str | None) -> None:
    """Make a token by which a gateway knows a user, or take one back.

    It is written once, to standard output, and nobody can show it again: the rules have its hash. A gateway lets it in,
    or not any more, within about a second.
    """
    if revoke is not None:
        _change(settings, lambda document: _without_token(document, name, revoke))
        return
    made = TOKEN + secrets.token_urlsafe(TOKEN_BYTES)
    hashed = rules.token_hash(made)
    facts = _replace(settings, lambda document: _with_token(document, name, hashed))[1]
    out = settings.out
    if out.json:
        out.record({"user": name, "token": made, "hash": hashed, "number": facts["number"]})
        return
    out.line(made)
    out.note(f"this token of {escape(name)} is not shown again; to revoke it: {hashed[: rules.TOKEN_SHOWN]}")


def _with_token(document: Document, name: str, hashed: str) -> Document:
    if name not in document["users"]:
        raise BadInput(f"there is no user {name!r}; `chp access user {name}` adds one")
    return rules.granted(document, "users", name, "tokens", [hashed])


def _without_token(document: Document, name: str, beginning: str) -> Document:
    hashes = document["users"].get(name, {}).get("tokens", [])
    found = [hashed for hashed in hashes if len(beginning) >= SAID_MIN and hashed.startswith(beginning.lower())]
    if len(found) != 1:
        many = "several tokens whose hashes begin" if found else "no token whose hash begins"
        known = ", ".join(hashed[: rules.TOKEN_SHOWN] for hashed in hashes) or "none"
        raise BadInput(f"user {name!r} has {many} with {beginning!r:.70}; there is: {known}")
    return rules.revoked(document, "users", name, "tokens", found)


@access.command(short_help="Whether a user may do something.")
@click.argument("name")
@click.argument("verb", type=click.Choice([*rules.ALLOW, "admin"]))
@click.argument("where", metavar="KEY|PREFIX|COMMAND")
@shared_for(ACCESS_S)
@pass_settings
@click.pass_context
def test(ctx: click.Context, settings: CliSettings, name: str, verb: str, where: str) -> None:
    """Say whether a user may read or write a key, or all of a prefix (with a slash at its end). Exit code 1: no.

    Of `consume` the prefix is that of a group, /.chp/topics/TOPIC/GROUP/, or of several.
    """
    with explained(settings), Admin(settings.servers, settings.patience(ACCESS_S)) as admin:
        document, facts, _ = _read(admin)
    may = not facts["number"] or Rules.of(document).may(name, verb, where)
    if settings.out.json:
        settings.out.record({"user": name, "verb": verb, "where": where, "may": may})
    else:
        settings.out.line(f"{escape(name)} {'may' if may else 'may not'} {verb} {escape(where) or 'everything'}")
    ctx.exit(0 if may else 1)


@access.command(short_help="Make the rules what a file says.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@shared_for(ACCESS_S)
@pass_settings
def apply(settings: CliSettings, file: Path, dry_run: bool) -> None:
    """Make the rules what a TOML file says, all of them; shows first what that changes.

    The file has tables [users.NAME] and [roles.NAME] with read, write, consume, deny-read, deny-write, deny-consume,
    admin, each a list; a user has roles, too. Users that stay keep their tokens, unless the file has them.
    """
    document = _rules_of(file)
    _change(settings, lambda before: _with_tokens_of(before, document), dry_run=dry_run)


def _with_tokens_of(before: Document, document: Document) -> Document:
    """Tokens are made on the pair, not in files."""
    kept = {name: entry.get("tokens", []) for name, entry in before["users"].items()}
    users = {
        name: entry if "tokens" in entry or not kept.get(name) else {**entry, "tokens": kept[name]}
        for name, entry in document["users"].items()
    }
    return {**document, "users": users}


def _kind(role: bool) -> str:
    return "roles" if role else "users"


def _rules_of(file: Path) -> Document:
    try:
        with file.open("rb") as opened:
            text = opened.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            raise Misused(f"{file} has more than {FILE_BYTES_MAX} bytes; is it a file of rules?")
        return Rules.of(tomllib.loads(text.decode())).document
    except OSError as error:
        raise Misused(f"{file}: {error.strerror}; name a file of rules") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Misused(f"{file} is not TOML: {error}") from None
    except BadInput as error:
        raise Misused(f"{file}: {error}") from None


def _serving(admin: Admin) -> tuple[Document, dict[str, Any], str]:
    """The same of the one that serves, looked for within the time there is: servers may be starting."""
    until = time.monotonic() + admin.timeout_s
    found = _read(admin)
    while not found[1].get("serving") and time.monotonic() < until:
        threading.Event().wait(AGAIN_S)
        found = _read(admin)
    return found


def _read(admin: Admin) -> tuple[Document, dict[str, Any], str]:
    """The rules of the server that serves, or else of one that answers; what it said, and which it is."""
    answers = list(admin.ask_all("access").values())
    told = [answer for answer in answers if isinstance(answer, AdminReply)]
    if not told:
        raise next(answer for answer in answers if not isinstance(answer, AdminReply))
    best = max(told, key=lambda reply: (bool(reply.facts.get("serving")), reply.number))
    document = best.facts.get("rules")
    return (NONE if document is None else Rules.of(document).document), best.facts, best.server


def _replace(settings: CliSettings, edit: Edit, *, dry_run: bool = False) -> tuple[list[str], dict[str, Any]]:
    """What changes, and what the server said of it."""
    with explained(settings), Admin(settings.servers, settings.patience(ACCESS_S)) as admin:
        before, facts, server = _read(admin) if dry_run else _serving(admin)
        try:
            after = Rules.of(edit(before)).document
        except BadInput as error:
            raise Misused(str(error)) from None
        _check_commands(before, after)
        changes = _difference(before, after)
        if changes and dry_run and not Rules.of(after).to_ask():
            raise Misused(
                "nobody could change these rules any more, so servers refuse them; leave somebody admin access"
            )
        if not dry_run and changes:
            facts = admin.ask(server, "access", rules=after, on=facts["number"]).facts
    return changes, facts


def _check_commands(before: Document, after: Document) -> None:
    """What is new among the admin commands is one that there is: a slip would allow nothing, and say nothing."""
    old, new = (
        {word for kind in NONE for each in d[kind].values() for word in each.get("admin", ())} for d in (before, after)
    )
    for word in sorted(new - old - set(rules.COMMANDS)):
        like = difflib.get_close_matches(word, rules.COMMANDS, 1)
        hint = f"; did you mean {like[0]}?" if like else ""
        raise Misused(f"{word!r} is no admin command; there are {', '.join(rules.COMMANDS)}{hint}")


def _change(settings: CliSettings, edit: Edit, *, dry_run: bool = False) -> None:
    out = settings.out
    changes, facts = _replace(settings, edit, dry_run=dry_run)
    if out.json:
        out.record({"changed": changes, "number": facts["number"], "dry_run": dry_run})
        return
    for line in changes or ["nothing changes"]:
        out.line(escape(line))


def _difference(before: Document, after: Document) -> list[str]:
    diff = difflib.ndiff(rules.lines(before), rules.lines(after))
    found = [line for line in diff if line[:1] in "+-"]
    return found if _of_groups(before) == _of_groups(after) else [*found, f"# from now on {_of_groups(after)}"]


COMMANDS = (access,)
