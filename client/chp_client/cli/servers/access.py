"""`chp access`: the rules of access, seen and changed on a live pair (SPEC.md, section 36).

The rules are one value. Each change reads the value, edits it here, and sends it back with the number of the rules that
it read. So if two clients change the rules at the same time, the second change is refused. A change is done when both
servers have it.
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
from ..settings import CliSettings, command, group
from ..store import asking, naming_mount
from ..text import escape

ACCESS_S = 10.0
# The time between looks for the active server.
AGAIN_S = 0.1
FILE_BYTES_MAX = 1 << 20
# Each token begins with this text, so that people and tools recognize it as a token.
TOKEN = "chp_"
TOKEN_BYTES = 32
# --revoke needs at least this many digits of a token's hash.
DIGITS_MIN = 4
NONE: Document = {"users": {}, "roles": {}}
Edit = Callable[[Document], Document]
NAME = click.argument("name")
ROLE = click.option("--role", is_flag=True, help="NAME is a role's.")
WHAT = click.argument("what", type=click.Choice([*rules.LISTS, "roles"]))
WORDS = click.argument("words", nargs=-1, required=True, metavar="PREFIX|COMMAND|ROLE...")


@group()
def access() -> None:
    """See and change who may do what.

    There are users, roles and their rules. Without any rule, each user with a key may do everything. If there are
    rules, users may do only what the rules allow.

    A rule is read, write or consume of a prefix, which is '' or begins and ends with a slash. The rules deny-read,
    deny-write and deny-consume win over these. The prefix of a group of a topic is /.chp/topics/TOPIC/GROUP/. An admin
    command is allowed by its name. A change of rules needs both servers, and servers with keys.

    Examples:
        chp access apply rules.toml --dry-run     # what would change
        chp access grant alice read /pub/ /ref/
        chp access test alice read /secret/
    """


@command(access, timeout_s=ACCESS_S)
@click.argument("name", required=False)
def show(settings: CliSettings, name: str | None) -> None:
    """List the rules.

    List all rules, or those of one user or role.
    """
    with asking(settings) as admin:
        document, facts, _ = _read(admin)
    shown = (
        document if name is None else {kind: {k: v for k, v in document[kind].items() if k == name} for kind in NONE}
    )
    lines = list(map(escape, rules.lines(shown)))
    if facts["number"]:
        lines.append(f"# {_of_groups(document)}")
    else:
        lines.insert(0, "there are no rules: every admitted client may do everything")
    named = Rules.of(document).names_consume
    settings.out.answer({**shown, "number": facts["number"], "names_consume": named}, "\n".join(lines))


def _of_groups(document: Document) -> str:
    """Return the sentence that says which right, `read` or `consume`, allows groups. All rules together decide this."""
    return rules.BY_CONSUME if Rules.of(document).names_consume else rules.BY_READ


@command(access, timeout_s=ACCESS_S)
@NAME
@click.option("--role", "roles", multiple=True, help="A role of the user's (several times: several).")
@click.option("--remove", is_flag=True, help="Take the user away, with all its rules.")
def user(settings: CliSettings, name: str, roles: tuple[str, ...], remove: bool) -> None:
    """Add a user, or take one away.

    The key of a user is a file of the servers' --keys.
    """
    if remove:
        _change(settings, lambda document: rules.without(document, "users", name))
    else:
        _change(settings, lambda document: rules.granted(document, "users", name, "roles", roles))


@command(access, timeout_s=ACCESS_S)
@NAME
@WHAT
@WORDS
@ROLE
def grant(settings: CliSettings, name: str, what: str, words: tuple[str, ...], role: bool) -> None:
    """Allow or deny something more.

    The change is done when both servers have it. Once any rule names `consume`, users who may only `read` a topic can't
    use its groups any more.

    Examples:
        chp access grant alice read /pub/ /ref/
        chp access grant alice admin status access
        chp access grant alice consume /.chp/topics/orders/billing/
        chp access grant --role reader deny-read /pub/internal/
        chp access grant alice roles reader
    """
    _change(settings, lambda document: rules.granted(document, _kind(role), name, what, words))


@command(access, timeout_s=ACCESS_S)
@NAME
@WHAT
@WORDS
@ROLE
def revoke(settings: CliSettings, name: str, what: str, words: tuple[str, ...], role: bool) -> None:
    """Take back what `grant` added.

    The user's next set or question is refused, and a subscription to the prefix ends.
    """
    _change(settings, lambda document: rules.revoked(document, _kind(role), name, what, words))


@command(access, timeout_s=ACCESS_S, mounts=True)
@NAME
@click.option("--revoke", metavar="HASH", help="Take back the token whose hash begins so.")
def token(settings: CliSettings, name: str, revoke: str | None) -> None:
    """Make a bearer token of a user, for the gateway.

    The token is written once, to standard output, and can't be shown again: the rules have only its hash. A gateway
    accepts a new token, or rejects a revoked one, within about a second. With several mounts, each pair gets the same
    token.

    Examples:
        chp access token alice                       # shown once; the pair keeps its hash
        chp access token alice --revoke 1a2b3c4d     # by the beginning of its hash, as `chp access show` has it
    """
    made = TOKEN + secrets.token_urlsafe(TOKEN_BYTES)
    hashed = rules.token_hash(made)
    pairs = list(settings.each_pair())

    def edit(document: Document) -> Document:
        return _with_token(document, name, hashed) if revoke is None else _without_token(document, name, revoke)

    if len(pairs) > 1:
        # Check the change at every pair before the first pair is changed.
        for mount, one in pairs:
            with naming_mount(mount):
                _replace(one, edit, dry_run=True)
    if revoke is not None:
        for _, one in pairs:
            _change(one, edit)
        return
    number = max(_replace(one, edit)[1]["number"] for _, one in pairs)
    out = settings.out
    out.answer({"user": name, "token": made, "hash": hashed, "number": number}, made)
    if not out.json:
        out.note(f"this token of {escape(name)} is not shown again; to revoke it: {hashed[: rules.TOKEN_SHOWN]}")


def _with_token(document: Document, name: str, hashed: str) -> Document:
    if name not in document["users"]:
        raise BadInput(f"there is no user {name!r}; `chp access user {name}` adds one")
    return rules.granted(document, "users", name, "tokens", [hashed])


def _without_token(document: Document, name: str, beginning: str) -> Document:
    hashes = document["users"].get(name, {}).get("tokens", [])
    found = [hashed for hashed in hashes if len(beginning) >= DIGITS_MIN and hashed.startswith(beginning.lower())]
    if len(found) != 1:
        many = "several tokens whose hashes begin" if found else "no token whose hash begins"
        known = ", ".join(hashed[: rules.TOKEN_SHOWN] for hashed in hashes) or "none"
        raise BadInput(f"user {name!r} has {many} with {beginning!r:.70}; there is: {known}")
    return rules.revoked(document, "users", name, "tokens", found)


@command(access, timeout_s=ACCESS_S)
@NAME
@click.argument("verb", type=click.Choice([*rules.ALLOW, "admin"]))
@click.argument("where", metavar="KEY|PREFIX|COMMAND")
def test(settings: CliSettings, name: str, verb: str, where: str) -> int:
    """Say whether a user may do something.

    The last argument is a key, a prefix (with a slash at its end) or an admin command. The prefix for `consume` is that
    of a group, /.chp/topics/TOPIC/GROUP/, or of several groups. Exit code 1 if the user may not.
    """
    with asking(settings) as admin:
        document, facts, _ = _read(admin)
    may = not facts["number"] or Rules.of(document).may(name, verb, where)
    text = f"{escape(name)} {'may' if may else 'may not'} {verb} {escape(where) or 'everything'}"
    settings.out.answer({"user": name, "verb": verb, "where": where, "may": may}, text)
    return 0 if may else 1


@command(access, timeout_s=ACCESS_S)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
def apply(settings: CliSettings, file: Path, dry_run: bool) -> None:
    """Replace all rules by those of a TOML file.

    The changes are shown. The file has tables [users.NAME] and [roles.NAME] with read, write, consume, deny-read,
    deny-write, deny-consume, admin, each a list; a user has roles, too. Users that stay keep their tokens, unless the
    file has tokens for them.
    """
    document = _rules_of(file)
    _change(settings, lambda before: _with_tokens_of(before, document), dry_run=dry_run)


def _with_tokens_of(before: Document, document: Document) -> Document:
    """Return `document`, in which users without tokens keep those of `before`: the pair has the tokens, not a file."""
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
    """Read the rules of the active server. If no server is active, wait within the timeout: servers may be starting."""
    until = time.monotonic() + admin.timeout_s
    found = _read(admin)
    while not found[1].get("serving") and time.monotonic() < until:
        threading.Event().wait(AGAIN_S)
        found = _read(admin)
    return found


def _read(admin: Admin) -> tuple[Document, dict[str, Any], str]:
    """Return rules, facts and address of the active server, or else of the answering server with the highest number."""
    answers = list(admin.ask_all("access").values())
    told = [answer for answer in answers if isinstance(answer, AdminReply)]
    if not told:
        raise next(answer for answer in answers if not isinstance(answer, AdminReply))
    best = max(told, key=lambda reply: (bool(reply.facts.get("serving")), reply.number))
    document = best.facts.get("rules")
    return (NONE if document is None else Rules.of(document).document), best.facts, best.server


def _replace(settings: CliSettings, edit: Edit, *, dry_run: bool = False) -> tuple[list[str], dict[str, Any]]:
    """Change the rules; return the changed lines, and the facts that the server answered."""
    with asking(settings) as admin:
        before, facts, server = _read(admin) if dry_run else _serving(admin)
        try:
            after = Rules.of(edit(before)).document
        except BadInput as error:
            raise Misused(str(error)) from None
        _check_commands(before, after)
        changes = _difference(before, after)
        if changes and dry_run and not Rules.of(after).to_ask():
            raise Misused(
                "no user could change these rules any more, so servers refuse them; leave one the admin command access"
            )
        if not dry_run and changes:
            facts = admin.ask(server, "access", rules=after, on=facts["number"]).facts
    return changes, facts


def _check_commands(before: Document, after: Document) -> None:
    """Refuse a new admin command that does not exist, because the servers would ignore a misspelt one."""
    old, new = (
        {word for kind in NONE for each in d[kind].values() for word in each.get("admin", ())} for d in (before, after)
    )
    for word in sorted(new - old - set(rules.COMMANDS)):
        like = difflib.get_close_matches(word, rules.COMMANDS, 1)
        hint = f"; did you mean {like[0]}?" if like else ""
        raise Misused(f"{word!r} is no admin command; there are {', '.join(rules.COMMANDS)}{hint}")


def _change(settings: CliSettings, edit: Edit, *, dry_run: bool = False) -> None:
    changes, facts = _replace(settings, edit, dry_run=dry_run)
    told = {"changed": changes, "number": facts["number"], "dry_run": dry_run}
    settings.out.answer(told, "\n".join(map(escape, changes or ["nothing changes"])))


def _difference(before: Document, after: Document) -> list[str]:
    diff = difflib.ndiff(rules.lines(before), rules.lines(after))
    found = [line for line in diff if line[:1] in "+-"]
    return found if _of_groups(before) == _of_groups(after) else [*found, f"# from now on {_of_groups(after)}"]


COMMANDS = (access,)
