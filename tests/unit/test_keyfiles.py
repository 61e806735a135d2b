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


def test_z85_encodes_the_example_of_zeromq_rfc_32() -> None:
    raw = bytes.fromhex("8E0BDD697628B91D8F245587EE95C5B04D48963F79259877B49CD9063AEAD3B7")
    # This is the example of RFC 32.
    assert keyfiles.encode(raw) == b"JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
    assert keyfiles.decode(keyfiles.encode(raw).decode()) == raw


@pytest.mark.parametrize("text", ["", "short", "~" * 40, "#" * 40, "0" * 41])
def test_invalid_key_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a key"):
        keyfiles.decode(text)


def test_key_files_are_read_back_as_written() -> None:
    assert keyfiles.read_secret(keyfiles.secret_text("a", PAIR)) == PAIR
    assert keyfiles.read_public(keyfiles.public_text("a", PAIR.public)) == PAIR.public


def test_a_key_pair_hides_its_secret_and_cannot_be_copied_or_pickled() -> None:
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
def test_a_server_with_bad_key_files_cannot_start_and_names_the_fault(
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


def test_a_peer_key_equal_to_the_servers_own_key_is_refused(tmp_path: Path) -> None:
    keyed = directory(tmp_path)
    (keyed / "peer.pub").write_text((keyed / "server.pub").read_text())
    with pytest.raises(CannotStart, match="this server's own key"):
        Keyring(str(keyed), has_peer=True)


def test_the_keyring_follows_added_and_removed_keys_of_a_user(tmp_path: Path) -> None:
    keyed, bob = directory(tmp_path), keys.new_pair()
    ring = Keyring(str(keyed), has_peer=False)
    assert ring.user_of(raw(PAIR), 0.0) == "alice" and ring.user_of(raw(bob), 0.0) is None
    keys.admit(keyed, "alice.2", bob)
    assert ring.user_of(raw(bob), 0.1) == "alice"
    (keyed / "clients" / "alice.pub").unlink()
    assert ring.user_of(raw(PAIR), 0.2) is None and ring.user_of(raw(bob), 0.2) == "alice"


def test_a_key_file_that_was_empty_is_read_again_later(tmp_path: Path) -> None:
    keyed, bob = directory(tmp_path), keys.new_pair()
    (keyed / "clients" / "bob.pub").touch()
    ring = Keyring(str(keyed), has_peer=False)
    assert ring.user_of(raw(bob), 0.0) is None
    (keyed / "clients" / "bob.pub").write_text(keyfiles.public_text("bob", bob.public))
    assert ring.user_of(raw(bob), AGAIN_S + 0.1) == "bob"


def test_bad_client_key_files_do_not_affect_other_users(tmp_path: Path) -> None:
    keyed = directory(tmp_path)
    for name, text in (("b c.pub", ""), ("bob.pub", "public = 1"), ("eve.pub", keyfiles.secret_text("eve", OTHER))):
        (keyed / "clients" / name).write_text(text)
    ring = Keyring(str(keyed), has_peer=False)
    assert ring.user_of(raw(PAIR), 0.0) == "alice" and ring.user_of(raw(OTHER), 0.0) is None


def test_is_peer_accepts_only_the_key_of_the_peer(tmp_path: Path) -> None:
    a, b = keys.pair_of_directories(tmp_path)
    ring = Keyring(str(a), has_peer=True)
    assert ring.is_peer(keyfiles.decode(keys.public_of(b).decode()))
    assert not ring.is_peer(raw(PAIR)) and not ring.is_peer(b"")
    assert not Keyring(str(a), has_peer=False).is_peer(b"")


def test_keygen_writes_a_key_pair_and_overwrites_no_file(tmp_path: Path) -> None:
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
def test_keygen_refuses_an_invalid_name(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("keygen", name)
    assert done.exit_code == 2 and not list(tmp_path.iterdir())
