"""`chp completion SHELL`: completion of commands, options and keys in a shell.

The shell runs `chp` to complete a word. Click completes commands and options; keys come from the pair. Completion waits
at most a second for keys, and offers none if the pair does not answer. If more than a thousand keys match, completion
offers their folders instead. While only one folder matches, completion goes down into that folder.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .settings import CliSettings, command
from .store import Store, reading

SHELLS = ("bash", "zsh", "fish")
PATIENCE_S = 1.0
# Completion offers at most this many words.
WORDS_MAX = 1000
# The last character in the sort order. A folder followed by this character sorts behind all keys of the folder.
BEHIND = "\U0010ffff"


@command(servers=False)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(settings: CliSettings, shell: str) -> None:
    """Print the completion of commands, options and keys for a shell.

    Completed keys come from the servers of CHP_SERVERS or CHP_CLIENT_FILE, or of a --servers or --client-file earlier
    on the command line.

    Examples:
        source <(chp completion bash)    # in ~/.bashrc
        source <(chp completion zsh)     # in ~/.zshrc, after compinit
        chp completion fish > ~/.config/fish/completions/chp.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click has these three"
    click.echo(kind(click.get_current_context().find_root().command, {}, "chp", "_CHP_COMPLETE").source())


def keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the keys that begin with `incomplete`. Click calls this function to complete a key on the command line."""
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
    """Return the keys under a prefix, or their folders if there are too many keys. Go down into a single folder."""
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
