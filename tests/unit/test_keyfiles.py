"""Files of keys: what is read of them, and what is said of a wrong one; no secret is ever shown.

covers: chp/keyfiles.py, access/keyring.py, `chp keygen`
"""

from __future__ import annotations

import copy
import pickle
import stat
from pathlib import Path

import pytest
import zmq

from chp import keyfiles
from chp.keyfiles import KeyPair
from chp_server.access.keyring import AGAIN_S, Keyring
from chp_server.exits import CannotStart, Exit
from tests.talk import run
from tests.wire import keys

PAIR = keys.new_pair()
OTHER = keys.new_pair()


def test_z85_is_that_of_zeromq() -> None:
    raw = bytes.fromhex("8E0BDD697628B91D8F245587EE95C5B04D48963F79259877B49CD9063AEAD3B7")
    # This is the example of RFC 32.
    assert keyfiles.encode(raw) == b"JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
    assert keyfiles.decode(keyfiles.encode(raw).decode()) == raw


@pytest.mark.parametrize("text", ["", "short", "~" * 40, "#" * 40, "0" * 41])
def test_what_is_no_key(text: str) -> None:
    with pytest.raises(ValueError, match="a key"):
        keyfiles.decode(text)


def test_what_is_written_is_read() -> None:
    assert keyfiles.read_secret(keyfiles.secret_text("a", PAIR)) == PAIR
    assert keyfiles.read_public(keyfiles.public_text("a", PAIR.public)) == PAIR.public


def test_a_pair_shows_no_secret_and_goes_nowhere() -> None:
    assert PAIR.secret.decode() not in f"{PAIR} {PAIR!r} {[PAIR]}"
    for away in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not copied or pickled"):
            away(PAIR)


def directory(tmp_path: Path) -> Path:
    """Return the directory of keys of a server with a peer and a client."""
    a, _ = keys.pair_of_directories(tmp_path, ("alice", PAIR))
    return a


def raw(pair: KeyPair) -> bytes:
    """Return a public key in the form of a handshake."""
    return keyfiles.decode(pair.public.decode())


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("server.secret", None, ["server.secret is missing", "chp keygen server"]),
        ("peer.pub", None, ["peer.pub is missing", "server.pub of the other server"]),
        ("peer.pub", "public: x", ["peer.pub is not TOML"]),
        ("peer.pub", "private = 1", ['no line public = "..."']),
        ("peer.pub", 'public = "abc"', ["peer.pub has a public key that can't be one", "40 characters"]),
        ("peer.pub", keyfiles.secret_text("b", OTHER), ["holds a secret key", "NAME.pub"]),
        ("server.secret", keyfiles.public_text("a", PAIR.public), ['no line secret = "..."']),
        ("server.secret", keyfiles.secret_text("a", KeyPair(PAIR.public, OTHER.secret)), ["not that of the secret"]),
    ],
    ids=range(8),
)
def test_what_is_wrong_with_a_servers_keys_is_said(
    tmp_path: Path, file: str, text: str | None, words: list[str]
) -> None:
    keyed = directory(tmp_path)
    (keyed / file).unlink()
    if text is not None:
        (keyed / file).touch(mode=0o600)
        (keyed / file).write_text(text)
    with pytest.raises(CannotStart) as found:
        Keyring(str(keyed), has_peer=True)
    assert found.value.code == Exit.USAGE
    assert all(word in str(found.value) for word in [str(keyed), *words]), str(found.value)
    assert OTHER.secret.decode() not in str(found.value)


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    keyed = directory(tmp_path)
    (keyed / "server.secret").chmod(0o640)
    with pytest.raises(CannotStart, match="chmod 600"):
        Keyring(str(keyed), has_peer=True)


def test_a_peer_with_our_own_key_is_a_mistake(tmp_path: Path) -> None:
    keyed = directory(tmp_path)
    (keyed / "peer.pub").write_text((keyed / "server.pub").read_text())
    with pytest.raises(CannotStart, match="this server's own key"):
        Keyring(str(keyed), has_peer=True)


def test_users_have_several_keys_and_come_and_go(tmp_path: Path) -> None:
    keyed, bob = directory(tmp_path), keys.new_pair()
    ring = Keyring(str(keyed), has_peer=False)
    assert ring.user_of(raw(PAIR), 0.0) == "alice" and ring.user_of(raw(bob), 0.0) is None
    keys.admit(keyed, "alice.2", bob)
    assert ring.user_of(raw(bob), 0.1) == "alice"
    (keyed / "clients" / "alice.pub").unlink()
    assert ring.user_of(raw(PAIR), 0.2) is None and ring.user_of(raw(bob), 0.2) == "alice"


def test_a_file_that_is_filled_later_is_read_later(tmp_path: Path) -> None:
    keyed, bob = directory(tmp_path), keys.new_pair()
    (keyed / "clients" / "bob.pub").touch()
    ring = Keyring(str(keyed), has_peer=False)
    assert ring.user_of(raw(bob), 0.0) is None
    (keyed / "clients" / "bob.pub").write_text(keyfiles.public_text("bob", bob.public))
    assert ring.user_of(raw(bob), AGAIN_S + 0.1) == "bob"


def test_files_that_are_no_users_keys_stop_nobody_else(tmp_path: Path) -> None:
    keyed = directory(tmp_path)
    for name, text in (("b c.pub", ""), ("bob.pub", "public = 1"), ("eve.pub", keyfiles.secret_text("eve", OTHER))):
        (keyed / "clients" / name).write_text(text)
    ring = Keyring(str(keyed), has_peer=False)
    assert ring.user_of(raw(PAIR), 0.0) == "alice" and ring.user_of(raw(OTHER), 0.0) is None


def test_only_the_peer_is_the_peer(tmp_path: Path) -> None:
    a, b = keys.pair_of_directories(tmp_path)
    ring = Keyring(str(a), has_peer=True)
    assert ring.is_peer(keyfiles.decode(keys.public_of(b).decode()))
    assert not ring.is_peer(raw(PAIR)) and not ring.is_peer(b"")
    assert not Keyring(str(a), has_peer=False).is_peer(b"")


def test_keygen_writes_a_pair_and_nothing_over_another(tmp_path: Path) -> None:
    done = run("keygen", str(tmp_path / "alice"))
    assert done.exit_code == 0, done.output
    secret, public = tmp_path / "alice.secret", tmp_path / "alice.pub"
    made = keyfiles.read_secret(secret.read_text())
    assert zmq.curve_public(made.secret) == made.public == keyfiles.read_public(public.read_text())
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert made.secret.decode() not in done.output + public.read_text()
    again = run("keygen", str(tmp_path / "alice"))
    assert again.exit_code == 2 and "alice.pub is there already" in again.output
    assert keyfiles.read_secret(secret.read_text()) == made


@pytest.mark.parametrize("name", ["", "a b", "alice.pub", "nowhere/alice", "../"])
def test_keygen_refuses_what_is_no_name(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("keygen", name)
    assert done.exit_code == 2 and not list(tmp_path.iterdir())
