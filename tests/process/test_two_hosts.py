"""Tests that run the commands of the operation pages, which set up a pair with keys, on two hosts.

covers: docs/operations.md and docs/operations/keys.md; host names of either kind of address; the answers to a newcomer
that leaves a command out
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.talk import until

from .hosts import TwoHosts, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why := why_not()), reason=why)]
DOCS = Path(__file__).parents[2] / "docs"
INSTALL = (DOCS / "operations.md").read_text(encoding="utf-8")
KEYS = (DOCS / "operations" / "keys.md").read_text(encoding="utf-8")
USER = re.search(r"^    (useradd .*?) +#.*$", INSTALL, re.M)
STATUS = re.search(r"`(chp --client-file [^`]* status)`", KEYS)


def commands() -> list[tuple[str, str]]:
    """Return the (host, command) pairs of the page."""
    section = KEYS.partition("## Make the keys\n")[2].partition("\n## ")[0]
    return re.findall(r"^    ([ab])\$ (.*)$", section, re.M)


TEN = commands()
SECRET = "/etc/chp/keys/server.secret"


def test_the_page_of_keys_has_ten_commands() -> None:
    assert len(TEN) == 10 and USER is not None and STATUS is not None


_ASKS = """
from chp_client import ClientFile
from chp_client.port.ask import QuestionPort
from chp_client.port.feed import Feed
servers = ClientFile.read("/etc/chp/alice.toml")
with QuestionPort(servers, 60) as port, Feed(servers) as feed:
    print(port.ask("", image=0, prefix="", count=True)["keys"], bool(feed.facts(60).newest))
"""


def set_up(hosts: TwoHosts, *, without: int = 0) -> str:
    """Run the page's commands, except number `without`, and return the text of their errors."""
    assert USER is not None
    said = ""
    for name in "ab":
        assert hosts[name].run(USER[1]).returncode == 0
    for number, (name, command) in enumerate(TEN, 1):
        if number == without:
            continue
        if "chp-server" in command:
            hosts[name].start(command)
        else:
            said += hosts[name].run(command).stderr
    return said


def status(hosts: TwoHosts) -> tuple[int, str]:
    """Return the exit code and the output of `chp status`."""
    assert STATUS is not None
    done = hosts.a.run(STATUS[1])
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("kind", [4, 6])
def test_the_ten_commands_make_a_pair(tmp_path: Path, kind: int) -> None:
    with TwoHosts(tmp_path / "hosts", kind) as hosts:
        assert set_up(hosts) == ""
        until(
            lambda: status(hosts)[0] == 0 or hosts.a.ended() != [None],
            lambda: f"a pair in sync: {status(hosts)}; a: {hosts.a.said()}; b: {hosts.b.said()}",
        )
        chp = "chp --client-file /etc/chp/alice.toml --timeout 25"
        done = hosts.a.run(f"{chp} set /a 1 && {chp} get /a")
        assert (done.returncode, done.stdout) == (0, "1"), done
        # The program asks by `QuestionPort` and `Feed`, the ways to ask without a Clone.
        asked = hosts.a.run(f"python3 -c '{_ASKS}'")
        assert (asked.returncode, asked.stdout) == (0, "1 True\n"), asked
        unknown = hosts.b.run("chp --servers a:5556,b:5566 --timeout 20 get /a")
        assert unknown.returncode != 0 and "lets in only who has a key" in unknown.stderr
        assert hosts.a.ended() == hosts.b.ended() == [None]


def test_a_client_reaches_a_link_local_address_with_its_interface(tmp_path: Path) -> None:
    with TwoHosts(tmp_path / "hosts", 6) as hosts:
        hosts.a.start("chp-server --insecure --bind tcp://*:5556 --store memory:")
        (found,) = re.findall(r"inet6 (fe80::[0-9a-f:]+)/", hosts.a.run("ip -6 addr show dev eth0").stdout)
        there = f"chp --servers 'tcp://[{found}%eth0]:5556' set /a 1"
        until(lambda: hosts.b.run(there).returncode == 0, "a server at a link-local address")


def test_a_replica_follows_a_server_whose_name_has_an_ipv6_address_alone(tmp_path: Path) -> None:
    with TwoHosts(tmp_path / "hosts", 6) as hosts:
        hosts.a.start("chp-server --insecure --bind tcp://*:5556 --store memory:")
        hosts.b.start("chp-server --insecure --bind tcp://*:5576 --store memory: --replica --upstream tcp://a:5556")
        until(lambda: hosts.a.run("chp --servers a:5556 set /a 1").returncode == 0, "a server")
        until(lambda: hosts.b.run("chp --servers b:5576 get /a").stdout == "1", hosts.b.said)


@pytest.mark.parametrize(
    ("without", "server", "says"),
    [
        (1, "a", f"{SECRET} is missing; run `chp keygen server` in that directory"),
        (2, "b", f"{SECRET} is missing; run `chp keygen server` in that directory"),
        (3, "b", "/etc/chp/keys/peer.pub is missing; copy the server.pub of the other server there"),
        (4, "a", "/etc/chp/keys/peer.pub is missing; copy the server.pub of the other server there"),
        (7, "a", f"{SECRET} can't be read (Permission denied); `chown chp {SECRET}`"),
        (8, "b", f"{SECRET} can't be read (Permission denied); `chown chp {SECRET}`"),
    ],
)
def test_a_server_names_the_fault_if_a_command_is_skipped(tmp_path: Path, without: int, server: str, says: str) -> None:
    with TwoHosts(tmp_path / "hosts") as hosts:
        set_up(hosts, without=without)
        until(lambda: hosts[server].ended() != [None], "the server to end")
        assert hosts[server].ended() == [2] and says in hosts[server].said()


@pytest.mark.parametrize(
    ("without", "says"),
    [
        (5, "the client file /etc/chp/alice.toml can't be read (No such file or directory); `chp keygen NAME --server"),
        (6, "put its NAME.pub into clients/ of the server's --keys"),
        (9, "tcp://b:5566 waits: it holds no store and does not hear its peer, which may hold one: start the other"),
        (10, "tcp://a:5556 waits: it holds no store and does not hear its peer, which may hold one: start the other"),
    ],
)
def test_the_status_names_the_fault_if_a_command_is_skipped(tmp_path: Path, without: int, says: str) -> None:
    with TwoHosts(tmp_path / "hosts") as hosts:
        set_up(hosts, without=without)
        until(lambda: says in status(hosts)[1], says)
        assert status(hosts)[0] != 0
