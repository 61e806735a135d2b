"""Tests that each rule of the specification has a test, and is one sentence on a line of its own.
covers: the ids of rules in SPEC.md and spec/, and tests/unit/spec_rules.py
"""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.spec_rules import HELD

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "SPEC.md", *sorted((ROOT / "spec").glob("*.md"))]
ID = r"[A-Z]-\d+"
WORDS_MAX = 25
RULES = [
    (page.name, rule, text)
    for page in PAGES
    for rule, text in re.findall(rf"^(?:- )?\[({ID})\] (.+)$", page.read_text(encoding="utf-8"), re.M)
]
MAPPED = [(path, name, rule) for path, tests in HELD.items() for name, rules in tests.items() for rule in rules.split()]


def test_each_rule_is_unique_and_named_by_a_test() -> None:
    counts = Counter(rule for _, rule, _ in RULES)
    assert len(counts) > 60 and not [rule for rule, n in counts.items() if n > 1], "an id names one rule"
    named = {rule for _, _, rule in MAPPED}
    assert counts.keys() - named == set(), "no test holds these: name one in tests/unit/spec_rules.py"
    assert named - counts.keys() == set(), "no page has these rules"


def test_ids_of_a_letter_are_numbered_without_a_gap_and_stand_on_one_page() -> None:
    for letter in {rule[0] for _, rule, _ in RULES}:
        of_it = [(page, int(rule[2:])) for page, rule, _ in RULES if rule[0] == letter]
        assert [n for _, n in of_it] == list(range(1, len(of_it) + 1)), f"{letter}: in order, from 1"
        assert len({page for page, _ in of_it}) == 1, f"{letter} is of one page"


@pytest.mark.parametrize(("page", "rule", "text"), RULES, ids=[rule for _, rule, _ in RULES])
def test_a_rule_is_one_sentence_that_ends_on_its_line(page: str, rule: str, text: str) -> None:
    assert text.rstrip()[-1] in ".:", f"{page} {rule} goes on in the next line"
    assert not re.search(r"[^.]\. [A-Z]", text), f"{page} {rule} has two sentences"
    assert len(text.split()) <= WORDS_MAX, f"{page} {rule} is long"


@pytest.mark.parametrize("path", HELD)
def test_each_test_that_is_named_is_there(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    for name in HELD[path]:
        assert re.search(rf"^ *(async )?def {name}\(", text, re.M), f"{path} has no {name}"
