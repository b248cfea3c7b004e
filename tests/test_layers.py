"""The shape of the package: arrows, owners of libraries, lengths, broad excepts."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ofa"

# Lowest first: a module may import from its own level's package and from below.
LEVELS = (
    ("errors", "chat", "files", "heavy", "jsonc", "shipped", "progress", "web_guard"),
    ("engine.base", "rag.passage", "state", "protocols.frames", "toolcalls"),
    ("config", "auth", "ports", "engine.text"),
    ("modes",),
    ("prompts", "protocols", "engine", "rag"),
    ("answer",),
    ("web", "wsgi", "supervisor", "byok", "clients", "banner", "client", "first_index"),
    ("engines", "retrieval"),
    ("serve",),
    ("cli", "__main__"),
)
# Between neighbours of one level these pairs never know each other.
APART = {("protocols", "engine"), ("protocols", "rag"), ("engine", "rag")}

OWNERS = {
    "flask": ("web",),
    "werkzeug": ("web",),
    "waitress": ("wsgi", "serve"),
    "httpx": ("engine/upstream", "client"),
    "mlx": ("engine/mlx/",),
    "mlx_lm": ("engine/mlx/lm",),
    "gguf": ("engine/mlx/gguf_",),
    "llguidance": ("engine/mlx/grammar",),
    "transformers": ("engine/mlx/", "rag/embed"),
    "huggingface_hub": ("engine/mlx/",),
    "chromadb": ("rag/store",),
    "sentence_transformers": ("rag/embed",),
    "torch": ("rag/embed",),
    "bm25s": ("rag/lexical",),
    "Stemmer": ("rag/lexical",),
    "pypdf": ("rag/read_pdf",),
    "jsonschema": ("toolcalls/check",),
    "referencing": ("toolcalls/check",),
    "regex": ("toolcalls/check",),
}

LONG_FUNCTIONS: dict[str, str] = {}  # "module:name" -> why it may pass 40 lines

MODULES = sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    """Return a module's name below ``ofa``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports(path: Path) -> Iterator[str]:
    """Yield the absolute name of everything *path* imports, late imports too."""
    package = ("ofa", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*up, *filter(None, [node.module])))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def level(name: str) -> int:
    """Return the level of a module below ``ofa``; the most specific entry counts."""
    best, found = -1, -1
    for number, entries in enumerate(LEVELS):
        for entry in entries:
            fits = name == entry or name.startswith((entry + ".", entry + "_"))
            if fits and len(entry) > best:
                best, found = len(entry), number
    return found


def part(name: str) -> str:
    """Return the first component of a module's name."""
    return name.split(".")[0]


def ids(path: Path) -> str:
    """Name a test case after its module."""
    return dotted(path) or "ofa"


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_arrows_point_down(path):
    """A module knows only what stands below it."""
    name = dotted(path)
    if not name:
        return
    assert level(name) >= 0, f"{name} has no level: add it to LEVELS"

    for target in imports(path):
        if not target.startswith("ofa.") or part(target[4:]).startswith("__"):
            continue
        other = target[4:]
        if part(other) == part(name) or level(other) < 0:
            continue
        assert level(other) <= level(name), f"{name} imports {other} from above"
        assert level(other) < level(name) or (
            (part(name), part(other)) not in APART
            and (part(other), part(name)) not in APART
        ), f"{name} and {other} must not know each other"


def test_dialects_do_not_know_each_other():
    """Each protocol module stands alone beside `frames` and its own parts."""
    families = {"openai", "anthropic", "ollama", "responses"}
    for path in (PACKAGE / "protocols").glob("*.py"):
        own = path.stem.split("_")[0]
        for target in imports(path):
            other = target.removeprefix("ofa.protocols.").split(".")[0].split("_")[0]
            if target.startswith("ofa.protocols.") and other in families:
                assert other == own, f"{path.name} imports {target}"


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_each_library_has_one_owner(path):
    """A heavy library is named in one place, so that one place changes with it."""
    where = path.relative_to(PACKAGE).with_suffix("").as_posix()

    for target in imports(path):
        for owner in (
            [OWNERS[target.split(".")[0]]] if target.split(".")[0] in OWNERS else []
        ):
            assert where.startswith(owner), f"{where} imports {target}"


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_modules_and_functions_fit_a_sitting(path):
    """No module over 400 lines, no function over 40 but for a reasoned few."""
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 400, f"{path}: split it by noun"

    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        body = node.body[0]
        doc = ast.get_docstring(node, clean=False) is not None
        docs = body.end_lineno - body.lineno + 1 if doc else 0
        length = node.end_lineno - node.lineno + 1 - docs
        key = f"{dotted(path)}:{node.name}"
        assert length <= 40 or key in LONG_FUNCTIONS, f"{key}: {length} lines"


def test_no_import_cycles():
    """Modules can be read in an order."""
    graph = {}
    names = {dotted(path): path for path in MODULES if dotted(path)}
    for name, path in names.items():
        targets = {target.removeprefix("ofa.") for target in imports(path)}
        targets |= {target.rpartition(".")[0] for target in targets}
        graph[name] = {other for other in targets if other in names and other != name}

    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"import cycle: {' -> '.join((*trail, name))}"
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_broad_excepts_give_their_reason():
    """`except Exception` stands where work changes hands, and says why."""
    for path in MODULES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "except Exception" in line or "except BaseException" in line:
                assert "# noqa: BLE001 - " in line or _reraises(path, number), (
                    f"{path}:{number}"
                )


def _reraises(path: Path, number: int) -> bool:
    """Return whether the handler at line *number* ends in a raise."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler) and node.lineno == number:
            last = node.body[-1]
            return isinstance(last, ast.Raise)
    return False


def test_every_test_states_its_claim():
    """A test's docstring is what breaks when it fails."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert ast.get_docstring(node), f"{path}:{node.lineno} {node.name}"


def test_the_repository_speaks_of_the_project_alone():
    """No path of a machine, no registry host, in anything that is tracked."""
    words = (
        "/work" + "/main",
        "/work" + "/shared",
        "/tmp" + "/w/",
        "/root" + "/",
        ".py" + "env",
        "pypi." + "org",
    )
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for path in (ROOT / name for name in listed):
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            assert not [word for word in words if word in text], path
