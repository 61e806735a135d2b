"""`chp completion SHELL`: completion of commands, options and keys in a shell.

The shell asks `chp` itself, which click answers; keys come from the pair. Completion waits for them a second at most,
and offers none if they can't be had. If there are more than a thousand keys it offers their folders, and goes down as
long as there is only one folder.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .settings import CliSettings, command
from .store import Store, reading

SHELLS = ("bash", "zsh", "fish")
PATIENCE_S = 1.0
# The most words that are offered; a shell shows no more at once.
WORDS_MAX = 1000
# No character comes after this one.
BEHIND = "\U0010ffff"


@command(servers=False)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(settings: CliSettings, shell: str) -> None:
    """Print the completion of commands, options and keys for a shell.

    Keys are those of CHP_SERVERS or CHP_CLIENT_FILE, or of the --servers or --client-file before them.

    Examples:
        source <(chp completion bash)    # in ~/.bashrc
        source <(chp completion zsh)     # in ~/.zshrc, after compinit
        chp completion fish > ~/.config/fish/completions/chp.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click has these three"
    click.echo(kind(click.get_current_context().find_root().command, {}, "chp", "_CHP_COMPLETE").source())


def keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the keys that begin so, for an argument that is a key."""
    settings = ctx.ensure_object(CliSettings)
    try:
        settings.resolve()
        settings.timeout_s = PATIENCE_S
        with reading(settings, [incomplete]) as store:
            return _words(store, incomplete)
    except click.ClickException:
        # A shell would put an error message into the command line.
        return []


def _words(store: Store, prefix: str) -> list[str]:
    """Return the keys under a prefix, or their folders if they are too many; a single folder is opened."""
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
