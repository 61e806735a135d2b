"""`chp completion SHELL`: what makes a shell complete commands, options and keys at Tab.

The shell asks `chp` itself, which is click's own affair; keys are the pair's. Tab waits for it a second at most, and
offers none if it can't be had. Of more than a thousand keys their folders are offered, as deep as they are one.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .settings import CliSettings, examples
from .store import Store, reading

SHELLS = ("bash", "zsh", "fish")
PATIENCE_S = 1.0
WORDS_MAX = 1000  # what a shell shows at once, and more than anybody reads
BEHIND = "\U0010ffff"  # no character comes after it


@click.command(short_help="Completion for a shell.", epilog=examples("""
    source <(chp completion bash)    # in ~/.bashrc
    source <(chp completion zsh)     # in ~/.zshrc, after compinit
    chp completion fish > ~/.config/fish/completions/chp.fish
"""))  # fmt: skip
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes SHELL complete commands, options and keys.

    Keys are those of CHP_SERVERS, CHP_CLIENT, or the --servers before them.
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click has these three"
    click.echo(kind(ctx.find_root().command, {}, "chp", "_CHP_COMPLETE").source())


def keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The keys that begin so, for an argument that is a key."""
    settings = ctx.ensure_object(CliSettings)
    try:
        settings.take_environment()
        settings.timeout_s = PATIENCE_S
        with reading(settings, [incomplete]) as store:
            return _words(store, incomplete)
    except click.ClickException:
        return []  # a shell that is told of it would put it into the line


def _words(store: Store, prefix: str) -> list[str]:
    """The keys under a prefix, or, of too many, their folders: where there is one only, what is in it."""
    found = store.keys(prefix, None, WORDS_MAX + 1)
    while len(found) > WORDS_MAX:
        words = _folders(store, prefix)
        if len(words) != 1:
            return words
        prefix = words[0]
        found = store.keys(prefix, None, WORDS_MAX + 1)
    return found


def _folders(store: Store, prefix: str) -> list[str]:
    words: list[str] = []
    after: str | None = None
    while len(words) < WORDS_MAX and (found := store.keys(prefix, after, 1)):
        cut = found[0].find("/", len(prefix)) + 1
        words.append(found[0][: cut or None])
        after = words[-1] + BEHIND if cut else words[-1]
    return words


COMMANDS = (completion,)
