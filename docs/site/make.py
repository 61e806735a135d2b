"""`make docs`: the pages of docs/, README, SPEC, CHANGELOG and the docstrings as one site that can be searched.

    python docs/site/make.py [--source DIR] [--out DIR]      # without --out only the sources are made, and checked

Pages are copied as they are; a link to what has no page here is shown as the path that it is. The API reference is
made of the docstrings of public names, as they stand in the source. Zensical (extra `docs`), which goes on where MkDocs
and its Material theme ended, makes the HTML, with `--strict`: what it warns of ends the build.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE, OUT = ROOT / "artifacts" / "site-source", ROOT / "artifacts" / "site"
OUTSIDE = {"README.md": "index.md", "SPEC.md": "spec.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md",
           "CONTRIBUTING.md": "contributing.md",
           **{f"spec/{path.name}": f"spec/{path.name}" for path in sorted((ROOT / "spec").glob("*.md"))}}  # fmt: skip
NAV: dict[str, list[str]] = {
    "Start": ["index.md", "start.md", "connecting.md", "faq.md"],
    "Guide": [
        "library.md",
        "cli.md",
        "starts.md",
        "guarantees.md",
        "topics.md",
        "testing.md",
        "metrics.md",
        "spark.md",
        "spark-cluster.md",
        "spark-state.md",
        "spark-pipelines.md",
        "spark-lake.md",
    ],
    "Gateway": [
        *(f"gateway/{name}.md" for name in ("start", "keys", "topics", "watch", "access", "running", "routes")),
    ],
    "Recipes": [
        "recipes.md",
        *(f"recipes/{name}.md" for name in ("lock", "semaphore", "election", "counter", "party")),
    ],
    "Operations": [
        "operations.md",
        *(
            f"operations/{name}.md"
            for name in (
                "keys",
                "services",
                "failures",
                "store",
                "monitoring",
                "memory-and-disk",
                "growing",
                "replicas",
                "upgrade",
                "backup",
                "tuning",
                "topics",
            )
        ),
        "settings.md",
        "security.md",
    ],
    "Coming from": [f"from/{name}.md" for name in ("redis", "etcd", "zookeeper", "kafka")],
    "Reference": [
        "api/clone.md",
        "api/recipes.md",
        "api/spark.md",
        "api/testing.md",
        "spec.md",
        *(page for page in OUTSIDE.values() if page.startswith("spec/")),
        "changelog.md",
    ],
    "Inside": ["speed.md", "architecture.md", "glossary.md", "sources.md", "decisions/README.md", "contributing.md"],
}
API: dict[str, tuple[str, str]] = {  # page: its title, and the module whose __all__ it shows
    "clone": ("The library", "chp_client"),
    "recipes": ("Recipes", "chp_client.recipes"),
    "spark": ("Spark", "chp_client.spark"),
    "testing": ("Servers for tests", "chp_server.testing"),
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)]*)?\)")


def pages() -> dict[str, Path]:
    """Each page of the site, and the file that it is made of."""
    found = {str(path.relative_to(ROOT / "docs")): path for path in sorted((ROOT / "docs").rglob("*.md"))}
    return found | {page: ROOT / name for name, page in OUTSIDE.items() if (ROOT / name).exists()}


def linked(text: str, page: str, source: Path, known: dict[str, Path]) -> str:
    """The text of a page with links that hold on the site."""
    by_file = {path.resolve(): name for name, path in known.items()}

    def replace(match: re.Match[str]) -> str:
        picture, words, target, part = match[1], match[2], match[3], match[4] or ""
        if ":" in target:
            return match[0]
        file = (source.parent / target).resolve()
        if file.is_dir() and (file / "README.md").exists():
            file /= "README.md"
        if picture:
            return f"![{words}]({'../' * page.count('/')}{file.name})"
        if file in by_file:
            return f"[{words}]({'../' * page.count('/')}{by_file[file]}{part})"
        shown = file.relative_to(ROOT) if file.is_relative_to(ROOT) else target
        return words if str(shown) in words else f"{words} (`{shown}`)"

    return LINK.sub(replace, text)


def make_source(to: Path) -> list[str]:
    """Write the sources of the site; their pages."""
    shutil.rmtree(to, ignore_errors=True)
    known = pages()
    for page, path in known.items():
        file = to / "docs" / page
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(linked(path.read_text(encoding="utf-8"), page, path, known), encoding="utf-8")
    drawn = [*(ROOT / "docs").glob("*.png"), *(ROOT / "docs").glob("*.svg")]
    for picture in [*drawn, *(ROOT / "benchmarks" / "results").glob("*.png")]:
        shutil.copy(picture, to / "docs" / picture.name)
    (to / "docs" / "api").mkdir()
    for page, (title, module) in API.items():
        (to / "docs" / "api" / f"{page}.md").write_text(reference(title, module), encoding="utf-8")
    there = sorted([*known, *(f"api/{page}.md" for page in API)])
    (to / "zensical.toml").write_text(settings(there), encoding="utf-8")
    return there


def settings(there: list[str]) -> str:
    """zensical.toml, with the pages in the order of NAV; what is in none of its groups comes at the end."""
    groups = {title: [page for page in named if page in there] for title, named in NAV.items()}
    rest = [page for page in there if not any(page in named for named in NAV.values())]
    groups["Inside"] += rest
    nav = ",\n".join(f'  {{ "{title}" = [{", ".join(map(_quoted, named))}] }}' for title, named in groups.items())
    return (
        '[project]\nsite_name = "chp-clone"\nsite_description = "A dictionary that many programs share"\n'
        f'docs_dir = "docs"\nsite_dir = "site"\nnav = [\n{nav}\n]\n'
        '[project.theme]\nfeatures = ["navigation.tabs", "navigation.top", "search.highlight", "content.code.copy"]\n'
    )


def _quoted(page: str) -> str:
    return f'"{page}"'


# -- the reference


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An importer of empty modules for a package that is not installed: each name in them is an empty class.

    PySpark is 400 MB, and the reference needs only the names of its classes.
    """

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return a specification if `name` is of the package."""
        mine = name.partition(".")[0] == self.package
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if mine else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return an empty module."""

        class Module(types.ModuleType):
            def __getattr__(self, name: str) -> type:
                if name.startswith("__"):
                    raise AttributeError(name)
                return type(name, (), {"__module__": self.__name__})

        return Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing."""


def reference(title: str, module: str) -> str:
    """A page of the public names of a module, with their docstrings as they stand there."""
    if importlib.util.find_spec("pyspark") is None:
        sys.meta_path.append(_Absent("pyspark"))
    imported = importlib.import_module(module)
    parts = [f"# {title}\n\n`{module}`\n", _docstring(imported)]
    for name in sorted(getattr(imported, "__all__", None) or _own(imported)):
        parts += entry(name, getattr(imported, name))
    return "\n".join(parts)


def _own(module: Any) -> list[str]:
    return [name for name, thing in vars(module).items()
            if not name.startswith("_") and getattr(thing, "__module__", "") == module.__name__]  # fmt: skip


def entry(name: str, thing: Any) -> Iterator[str]:
    """A heading, its signature, its words; of a class its methods too."""
    yield f"\n## {name}\n"
    yield _signature(name, thing)
    yield _docstring(thing)
    if inspect.isclass(thing):
        for each in sorted(set(dir(thing))):
            member = inspect.getattr_static(thing, each)
            function = getattr(member, "__func__", getattr(member, "fget", member))
            ours = (getattr(function, "__module__", None) or "").startswith(("chp", "pytest_chp"))
            if not each.startswith("_") and ours and inspect.isfunction(function):
                yield f"\n### {name}.{each}\n"
                yield "" if isinstance(member, property) else _signature(each, function)
                yield _docstring(function)


def _signature(name: str, thing: Any) -> str:
    try:
        named = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return ""
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in named if each.name != "self"]
    return f"```text\n{name}{inspect.Signature(plain)}\n```\n"


def _docstring(thing: Any) -> str:
    text = inspect.getdoc(thing)
    return f"```text\n{text.replace('```', '``')}\n```\n" if text else ""


def main() -> None:
    """Make it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, default=SOURCE)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    there = make_source(given.source)
    if given.out is not None:
        argv = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
        done = subprocess.run(argv, cwd=given.source, check=False)
        if done.returncode:
            sys.exit(done.returncode)
        shutil.rmtree(given.out, ignore_errors=True)
        shutil.copytree(given.source / "site", given.out)
    print(f"{len(there)} pages in {given.out or given.source}")


if __name__ == "__main__":
    main()
