"""covers: chp/facts.py. The table has what servers count and what the programs that show it read; types and paths."""

import re
from pathlib import Path

import pytest

from chp.facts import BY_PATH, COUNTS, FACTS, GAUGES, GROUP_GAUGES, MEASURES, REPLICA_GAUGES, flat, names
from chp_server.core.pair.arbitration import Arbitration
from chp_server.core.pair.pair_state import IncompatiblePeer

ROOT = Path(__file__).parents[2]
SERVER = {path: path.read_text(encoding="utf-8") for path in (ROOT / "server/chp_server").rglob("*.py")}
DYNAMIC = ("refused_", "garbage_", "suffix_")


def test_each_metric_name_and_fact_path_is_unique() -> None:
    metrics = [fact.metric_name for fact in (*GAUGES, *GROUP_GAUGES, *REPLICA_GAUGES)] + [
        measure.name for measure in MEASURES
    ]
    assert len(set(metrics)) == len(metrics)
    assert len(BY_PATH) == len(FACTS)


def test_the_table_has_every_count_of_the_server() -> None:
    text = "".join(SERVER.values())
    literal = set(re.findall(r'counts\["([a-z_]+)"\]', text))
    refused = {f"refused_{code}" for code in re.findall(r'(?:Refusal|Refuse|Expected)\([^"\n]*"([a-z]+)"', text)}
    assert len(literal) > 30 and len(refused) > 10
    assert literal | refused <= COUNTS.keys()
    gone = [kind for kind in COUNTS.keys() - literal if not kind.startswith(DYNAMIC) and f'"{kind}"' not in text]
    assert not gone, f"nothing counts {gone}"


@pytest.mark.parametrize(
    "status",
    [
        {"misfit": IncompatiblePeer("foreign", "another store", "p", b"s", active=True, heard=1.0).status(2.0)},
        {"arbiter": Arbitration(True, "primary", 0.0).status()},
    ],
)
def test_the_table_has_the_facts_of_the_arbiter_and_an_incompatible_peer(status: dict[str, object]) -> None:
    (top,) = status
    found = dict(flat(status))
    assert found.keys() == {f"{top}.{name}" for name in names(top)}
    assert all(value is None or BY_PATH[path].fits(value) for path, value in found.items())


def test_a_fact_of_the_wrong_type_is_absent() -> None:
    keys, alive, memory = BY_PATH["keys"], BY_PATH["peer.alive"], BY_PATH["room.memory"]
    assert keys.of({"keys": 3}) == 3
    assert keys.of({"keys": True}) is None and keys.of({"keys": "3"}) is None and keys.of({}) is None
    assert alive.of({"peer": {"alive": False}}) is False and alive.of({"peer": None}) is None
    assert memory.of({"room": [1]}) is None
