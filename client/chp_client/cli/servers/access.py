"""`chp access`: who may do what, seen and changed on a live pair (SPEC.md, section 36).

Rules are one value. Each change reads it, edits it here, and gives it back on the number that it was read at, so that
of two who change it at once one is told to do it again. It is done when both servers have it.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from chp import access as rules
from chp.access import Document, Rules
from chp.errors import BadInput

from ...admin import Admin, Reply
from ..faults import Misused
from ..settings import Settings, examples, pass_settings, shared_for
from ..store import explained
from ..text import escape

ACCESS_S = 10.0
FILE_BYTES_MAX = 1 << 20
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

    A rule is read or write of a prefix, which is '' or begins and ends with a slash; deny-read and deny-write win over
    them. An admin command is allowed by its name. It needs servers with keys, and both of them.
    """


@access.command(short_help="List the rules.")
@click.argument("name", required=False)
@shared_for(ACCESS_S)
@pass_settings
def show(settings: Settings, name: str | None) -> None:
    """List all rules, or those of one user or role."""
    with explained(settings), Admin(settings.servers, settings.patience(ACCESS_S)) as admin:
        document, facts, _ = _read(admin)
    shown = (
        document if name is None else {kind: {k: v for k, v in document[kind].items() if k == name} for kind in NONE}
    )
    if settings.out.json:
        settings.out.record({**shown, "number": facts["number"]})
        return
    if not facts["number"]:
        settings.out.line("there are no rules: whoever is let in may do everything")
    for line in rules.lines(shown):
        settings.out.line(escape(line))


@access.command(short_help="Add a user, or take one away.")
@click.argument("name")
@click.option("--role", "roles", multiple=True, help="A role of the user's (several times: several).")
@click.option("--remove", is_flag=True, help="Take the user away, with all its rules.")
@shared_for(ACCESS_S)
@pass_settings
def user(settings: Settings, name: str, roles: tuple[str, ...], remove: bool) -> None:
    """Add a user, with roles if any are named, or take one away. Its key is a file of the servers' --keys."""
    if remove:
        _change(settings, lambda document: rules.without(document, "users", name))
    else:
        _change(settings, lambda document: rules.granted(document, "users", name, "roles", roles))


@access.command(short_help="Allow or deny something more.", epilog=examples("""
    chp access grant alice read /pub/ /ref/
    chp access grant alice admin status access
    chp access grant --role reader deny-read /pub/internal/
    chp access grant alice roles reader
"""))  # fmt: skip
@click.argument("name")
@click.argument("what", type=WHAT)
@click.argument("words", nargs=-1, required=True, metavar="PREFIX|COMMAND|ROLE...")
@click.option("--role", is_flag=True, help="NAME is a role's.")
@shared_for(ACCESS_S)
@pass_settings
def grant(settings: Settings, name: str, what: str, words: tuple[str, ...], role: bool) -> None:
    """Add to what a user or a role may, or may not. Done when both servers have it."""
    _change(settings, lambda document: rules.granted(document, _kind(role), name, what, words))


@access.command(short_help="Take something of it back.")
@click.argument("name")
@click.argument("what", type=WHAT)
@click.argument("words", nargs=-1, required=True, metavar="PREFIX|COMMAND|ROLE...")
@click.option("--role", is_flag=True, help="NAME is a role's.")
@shared_for(ACCESS_S)
@pass_settings
def revoke(settings: Settings, name: str, what: str, words: tuple[str, ...], role: bool) -> None:
    """Take from what `grant` added. The next set and question are refused; who listens is cut off from it."""
    _change(settings, lambda document: rules.revoked(document, _kind(role), name, what, words))


@access.command(short_help="Whether a user may do something.")
@click.argument("name")
@click.argument("verb", type=click.Choice(["read", "write", "admin"]))
@click.argument("where", metavar="KEY|PREFIX|COMMAND")
@shared_for(ACCESS_S)
@pass_settings
@click.pass_context
def test(ctx: click.Context, settings: Settings, name: str, verb: str, where: str) -> None:
    """Say whether a user may read or write a key, or all of a prefix (with a slash at its end). Exit code 1: no."""
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
def apply(settings: Settings, file: Path, dry_run: bool) -> None:
    """Make the rules what a TOML file says, all of them; shows first what that changes.

    The file has tables [users.NAME] and [roles.NAME] with read, write, deny-read, deny-write, admin, each a list; a
    user has roles, too.
    """
    document = _rules_of(file)
    _change(settings, lambda _: document, dry_run=dry_run)


def _kind(role: bool) -> str:
    return "roles" if role else "users"


def _rules_of(file: Path) -> Document:
    try:
        with file.open("rb") as opened:
            text = opened.read(FILE_BYTES_MAX).decode()
        return Rules.of(tomllib.loads(text)).document
    except OSError as error:
        raise Misused(f"{file}: {error.strerror}; name a file of rules") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Misused(f"{file} is not TOML: {error}") from None
    except BadInput as error:
        raise Misused(f"{file}: {error}") from None


def _read(admin: Admin) -> tuple[Document, dict[str, Any], str]:
    """The rules of the server that serves, or else of one that answers; what it said, and which it is."""
    answers = list(admin.ask_all("access").values())
    told = [answer for answer in answers if isinstance(answer, Reply)]
    if not told:
        raise next(answer for answer in answers if not isinstance(answer, Reply))
    best = max(told, key=lambda reply: (bool(reply.facts.get("serving")), reply.number))
    document = best.facts.get("rules")
    return (NONE if document is None else Rules.of(document).document), best.facts, best.server


def _change(settings: Settings, edit: Edit, *, dry_run: bool = False) -> None:
    out = settings.out
    with explained(settings), Admin(settings.servers, settings.patience(ACCESS_S)) as admin:
        before, facts, server = _read(admin)
        try:
            after = Rules.of(edit(before)).document
        except BadInput as error:
            raise Misused(str(error)) from None
        changes = _difference(before, after)
        if not dry_run and changes:
            facts = admin.ask(server, "access", rules=after, on=facts["number"]).facts
    if out.json:
        out.record({"changed": changes, "number": facts["number"], "dry_run": dry_run})
        return
    for line in changes or ["nothing changes"]:
        out.line(escape(line))


def _difference(before: Document, after: Document) -> list[str]:
    diff = difflib.ndiff(rules.lines(before), rules.lines(after))
    return [line for line in diff if line[:1] in "+-"]


COMMANDS = (access,)
