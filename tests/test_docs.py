"""What the pages say and what the program does are the same, both ways."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from ofa.banner import Connection, as_json
from ofa.cli.main import make_parser
from ofa.config import load
from ofa.config_schema import (
    SECTIONS,
    UPSTREAM_FEATURES,
    ModeChange,
    rows,
    rows_of,
)
from ofa.engine import upstream_kinds as kinds
from ofa.errors import ConfigError, OfaError
from ofa.modes import SEED_MODES
from ofa.rag.glossary import Glossary
from ofa.rag.sources import Place, load_sources

from . import cli_docs

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
MODULES = sorted((ROOT / "ofa").rglob("*.py"))

_FENCE = re.compile(r"^( *)```[a-z]*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`]+)`")
_PLACEHOLDER_NUMBERS = {"N", "PORT"}
_RUNS_OFA = re.compile(
    r"(?:OFA_\w+=\S+ +|exec +)*"
    r"(?:(?:\.venv/bin/)?(?P<own>ofa)|scripts/serve)(?P<rest>(?: .*)?)$"
)
_SHELL = {"|", ">", "<", "&&", "||", ";", "&"}
_ELLIPSIS = re.compile(r"(?<=[ \[])…")  # "and so on", if it is no quoted question
_NO_COMMAND = re.compile(r"[─►]|\$@")  # a drawing, a script's own arguments
_VARIABLE = re.compile(r"\bOFA_[A-Z0-9_]*[A-Z0-9]\b")


def blocks(text: str) -> list[str]:
    """Return the fenced blocks of a page, without their indentation."""
    return [
        "\n".join(line.removeprefix(indent) for line in body.splitlines())
        for indent, body in _FENCE.findall(text)
    ]


def spans(text: str) -> list[str]:
    """Return the code spans of a page, each on one line."""
    return [" ".join(span.split()) for span in _SPAN.findall(_FENCE.sub("", text))]


def literals(path: Path) -> Iterator[str]:
    """Yield every string of a module, of a f-string its constant parts."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


# --------------------------------------------------------------------------------------
# The command line


def test_the_cli_page_is_the_parsers():
    """docs/cli.md has every command and option as it is now."""
    message = "run scripts/cli-docs"

    assert cli_docs.TARGET.read_text(encoding="utf-8") == cli_docs.render(), message


def test_every_argument_says_what_it_is_for():
    """An option without help would be an empty cell in the page."""
    for name, summary, parser in cli_docs.commands(make_parser()):
        assert summary, name
        for action in cli_docs.arguments(parser):
            assert action.help or action.metavar, f"{name} {action.option_strings}"


def command_lines() -> list[tuple[str, tuple[str, ...]]]:
    """Return the pages' calls of `ofa`: where each stands, and its words."""
    found = {}
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        lines = [line for block in blocks(text) for line in block.split("\n")]
        for line in (*lines, *spans(text)):
            match = _RUNS_OFA.match(line.strip())
            if match and path != cli_docs.TARGET and not _NO_COMMAND.search(line):
                words = words_of(match["rest"])
                found[words if match["own"] else ("serve", *words)] = path.name
    return [(page, words) for words, page in found.items()]


def words_of(rest: str) -> tuple[str, ...]:
    """Return a command's words, up to what the shell takes for itself."""
    words: list[str] = []
    for word in shlex.split(_ELLIPSIS.sub("", rest), comments=True):
        if word in _SHELL or word.startswith((">", "<", "2>")):
            break
        words.append("40123" if word in _PLACEHOLDER_NUMBERS else word)
    return tuple(words)


@pytest.mark.parametrize(("page", "words"), command_lines(), ids=str)
def test_command_lines_in_the_pages_parse(page, words):
    """What a page tells people to type is no wrong command."""
    names = [name for name, _, _ in cli_docs.commands(make_parser())]
    if any(name.startswith(" ".join(["ofa", *words])) for name in names):
        return  # the name of a command or of a group of them
    said = io.StringIO()

    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            make_parser().parse_args(words)
        except SystemExit as stop:
            assert not stop.code, f"{page}: ofa {' '.join(words)}: {said.getvalue()}"


def test_command_lines_are_found_in_the_pages():
    """The test above looks at something: the README's own commands are among them."""
    words = {words for _, words in command_lines()}

    assert ("index", "status") in words
    assert any(line[:1] == ("serve",) and "--upstream-url" in line for line in words)


def test_every_fact_of_the_printed_line_is_documented():
    """Launchers read `ofa serve --json`; docs/install.md names what they find in it."""
    page = (DOCS / "install.md").read_text(encoding="utf-8")
    facts = json.loads(as_json(Connection("node7", "0.0.0.0", 40123, 40123, "you")))

    assert [name for name in facts if f"`{name}`" not in page] == []


# --------------------------------------------------------------------------------------
# Configuration


def test_keys_in_the_pages_exist():
    """A `[section] key` that a page names is one of site.toml's."""
    known = set(rows()) | {row.name for row in rows_of("modes", ModeChange)}
    named = {
        f"{section}.{key}"
        for span in spans(TEXT)
        for section, key in re.findall(r"^\[(\w+)\] (\w+)", span)
    }
    dotted = {
        span
        for span in spans(TEXT)
        if re.fullmatch(rf"({'|'.join(SECTIONS)})\.\w+", span)
    } - {"site.toml"}

    assert len(named) > 10
    assert (named | dotted) - known == set()


def test_the_example_has_every_section_and_key():
    """site.toml.example, where README and pages send people, misses no key."""
    text = (ROOT / "site.toml.example").read_text(encoding="utf-8")
    everything = tomllib.loads(re.sub(r"(?m)^# (?=\w+ = |\[\S+\]$)", "", text))

    for name in rows():
        section, key = name.split(".")
        assert key in everything[section], name
    for row in rows_of("modes", ModeChange):
        assert row.name.split(".")[1] in everything["modes"]["lammps"], row.name


def toml_blocks() -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the pages' blocks that are TOML with tables, as text and parsed."""
    for block in blocks(TEXT):
        with contextlib.suppress(tomllib.TOMLDecodeError):
            tables = tomllib.loads(block)
            if tables and all(isinstance(table, dict) for table in tables.values()):
                yield block, tables


def test_toml_in_the_pages_is_accepted(tmp_path):
    """What is to be copied into site.toml or sources.toml is read as it stands."""
    count = {"site": 0, "sources": 0}
    for text, tables in toml_blocks():
        kind = "site" if set(tables) <= {*SECTIONS, "modes"} else "sources"
        path = tmp_path / f"{kind}.toml"
        path.write_text(text, encoding="utf-8")
        count[kind] += 1
        if kind == "site":
            load(str(path), {}, {})
        else:
            load_sources(path)

    assert count["site"] >= 2
    assert count["sources"] >= 2


def test_the_glossary_in_the_pages_does_what_they_say():
    """docs/documents.md's example is one, and finds what the text below it says."""
    page = (DOCS / "documents.md").read_text(encoding="utf-8")
    (text,) = (block for block in blocks(page) if " => " in block)
    rules = Glossary.parse(text)

    assert rules.added("two fat nodes") == rules.added("fat GPU nodes") == ("bigmem",)
    assert rules.added("nodes that are fat") == ()
    assert "OUT_OF_MEMORY" in rules.added("killed for too much memory")
    assert rules.added("what was on the old cluster?") == ("tulip", "/scratch-tulip")
    assert rules.added("CHT") == ("conjugate heat transfer",)


def test_every_key_of_a_place_is_documented():
    """docs/documents.md has a row for each key of sources.toml."""
    page = (DOCS / "documents.md").read_text(encoding="utf-8")
    keys = {field.name for field in fields(Place)} - {"under"} | {"title"}

    assert {key for key in keys if f"| `{key}` |" not in page} == set()


def variables_in_code() -> set[str]:
    """Return the OFA_ variables that are read: in the package, scripts and sources."""
    found = {text for path in MODULES for text in literals(path)}
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.is_file()]
    texts = [path.read_text("utf-8") for path in scripts]
    texts.append((ROOT / "rag_index" / "sources.toml").read_text("utf-8"))
    read = {name for name in found if _VARIABLE.fullmatch(name)}
    return read | {name for text in texts for name in _VARIABLE.findall(text)}


def test_every_variable_is_documented():
    """An OFA_ variable that code reads, and that no rule derives, stands in a page."""
    derived = {row.env[0] for row in rows().values()}
    exported = set(_VARIABLE.findall((ROOT / "ofa/cli/config.py").read_text("utf-8")))
    missing = variables_in_code() - derived - exported - set(_VARIABLE.findall(TEXT))

    assert missing == set()


def test_every_variable_in_the_pages_is_read():
    """A page names no OFA_ variable that has no effect."""
    derived = {name for row in rows().values() for name in row.env}

    assert set(_VARIABLE.findall(TEXT)) - derived - variables_in_code() == set()


@pytest.mark.parametrize("mode", SEED_MODES, ids=lambda mode: mode.id)
def test_every_mode_is_documented(mode):
    """A row of docs/configuration.md has a mode's id, title and collections."""
    title = mode.title.removeprefix("OFA · ")
    row = f"| `{mode.id}` | {title} | {', '.join(mode.collections)} |"

    assert row in (DOCS / "configuration.md").read_text(encoding="utf-8")


# --------------------------------------------------------------------------------------
# Errors and retrieval


def error_classes(base: type[OfaError] = OfaError) -> Iterator[type[OfaError]]:
    """Yield the errors of `ofa.errors` that a client can see."""
    yield base
    for child in base.__subclasses__():
        if child.__module__ == "ofa.errors" and child is not ConfigError:
            yield from error_classes(child)


def codes_in_code() -> set[str]:
    """
    Return every error code that a client can see, by looking at the source.

    Those of `ofa.rag` are left out: retrieval never fails a chat, and the command line
    shows no codes.
    """
    found: set[str] = set()
    for path in MODULES:
        if path.parent.name == "rag":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found.update(_codes(node))
    return found


def _codes(node: ast.AST) -> Iterator[str]:
    """Yield the codes in ``code="…"``, in assignments to a code, and in `Refused`."""
    if isinstance(node, ast.Call):
        given = [word.value for word in node.keywords if word.arg == "code"]
        if getattr(node.func, "id", "") == "Refused" and len(node.args) > 1:
            given.append(node.args[1])
        yield from filter(None, map(_text, given))
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            names, values = [target], [node.value]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                names, values = target.elts, node.value.elts
            for name, value in zip(names, values, strict=True):
                called = getattr(name, "id", getattr(name, "attr", ""))
                if called.lstrip("_").lower() == "code" and _text(value):
                    yield _text(value)


def _text(node: ast.AST) -> str:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else ""


def documented_codes() -> dict[str, str]:
    """Return status by code, from the table of docs/api.md."""
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    rows_ = re.findall(r"^\| (\d{3}|4xx) \| `(\w+)` \| .+ \|$", page, re.MULTILINE)
    return {code: status for status, code in rows_}


def test_every_error_code_is_documented():
    """docs/api.md has the codes that code raises, and no others."""
    assert set(documented_codes()) == codes_in_code()


@pytest.mark.parametrize("error", [*error_classes()], ids=lambda error: error.__name__)
def test_error_codes_have_the_documented_status(error):
    """The table's status is the class's."""
    assert documented_codes()[error.code] == str(error.status)


def test_every_reason_of_retrieval_is_documented():
    """docs/documents.md explains what `x-ofa-rag` may say."""
    page = (DOCS / "documents.md").read_text(encoding="utf-8")
    told = re.compile(r"(none|skipped|failed)[:;] (.+)", re.DOTALL)
    found = {
        f"{match[1]}; {match[2].split('(')[0].rstrip()}"
        for name in ("rag/retrieve", "rag/lookup", "answer")
        for text in literals(ROOT / f"ofa/{name}.py")
        if (match := told.fullmatch(text))
    }

    assert len(found) > 8
    assert [reason for reason in sorted(found) if f"`{reason}" not in page] == []


# --------------------------------------------------------------------------------------
# Upstreams


@pytest.mark.parametrize(
    "kind",
    [one for one in vars(kinds).values() if isinstance(one, kinds.Kind)],
    ids=lambda kind: kind.name,
)
def test_what_is_not_asked_of_an_upstream_is_documented(kind):
    """docs/scale-out.md has a row for each kind, with all that is refused for it."""
    page = (DOCS / "scale-out.md").read_text(encoding="utf-8")
    owners = [owner for owner, one in kinds.OWNERS.items() if one is kind]
    lacks = [name for name in UPSTREAM_FEATURES if name not in kind.features]
    known = ", ".join(f"`{owner}`" for owner in owners) or "anything else"
    listed = ", ".join(f"`{name}`" for name in lacks)
    name = "others" if kind is kinds.UNKNOWN else kind.name

    assert f"| {name} | {known} | {listed}".rstrip() + " |" in page
    assert all(f"`{name}`" in page for name in UPSTREAM_FEATURES)


# --------------------------------------------------------------------------------------
# Links


def markdown_files() -> list[Path]:
    """Return every Markdown file that belongs to the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as forges make them."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize(
    "page", markdown_files(), ids=lambda path: str(path.relative_to(ROOT))
)
def test_links_lead_somewhere(page):
    """Every relative link is to a file, and its anchor to a heading, that are there."""
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text(encoding="utf-8")))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        to = page.parent / name if name else page
        assert to.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(to), f"{page.name}: {target}"


def test_scripts_are_executable():
    """A page's `scripts/NAME` can be run as it stands there."""
    for name in set(re.findall(r"\bscripts/([\w-]+)", TEXT)):
        path = ROOT / "scripts" / name
        assert path.is_file(), name
        assert name == "environment" or os.access(path, os.X_OK), name
