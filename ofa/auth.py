"""
Who may ask: the key file, the keys in it, and the headers they come in.

A key is in memory as a digest only, so that no repr, traceback or log line can
show it; the text of a key leaves `KeyFile.read` for `ofa key show` alone.
"""

from __future__ import annotations

import codecs
import hashlib
import logging
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from .errors import ConfigError, Unauthorized
from .files import (
    UnsafeFile,
    finish_making,
    make_file,
    make_folder,
    read_own,
    reason,
    weakness,
    write_file,
)
from .state import StateFolder

NAME = ".ofa_api_key"
LIMIT_BYTES = 64 * 1024  # about 1,300 keys
LOOK_EVERY_S = 0.5  # a rotation is to be seen within 2 s
KEPT_S = 60.0  # what an editor's save or a file server's restart may take

_log = logging.getLogger("ofa.auth")

_WEAK_CHARS = 20  # shorter ones could be guessed by a neighbour on the node
# A header is read as a list no further than this; our server takes 16 KiB in all.
_LIST_CHARS = 4096
# The header forms that clients use; the first may carry a scheme.
_HEADERS = ("authorization", "api-key", "x-api-key", "openai-api-key")
_KEY = re.compile(rb"[!-+\--~]+")
_BLANKS = re.compile(r"[ \t]+")

_MISSING = (
    "no API key in this request: send the header 'Authorization: Bearer KEY' with "
    "the key that `ofa key show` prints where the server runs"
)
_EMPTY = (
    "an empty API key: the header 'Authorization: Bearer' came with nothing after it. "
    'VS Code does so when the key was typed into "apiKey" in chatLanguageModels.json: '
    "choose gear -> Update API Key and paste it there, or run `ofa byok write`, which "
    'puts it under "requestHeaders"'
)
_WRONG = (
    "a wrong API key: `ofa key show` prints the right one where the server runs; "
    "after `ofa key rotate`, give it to your editor again (`ofa byok write`)"
)
_TWO = "two different API keys in one request: send one of them"
_LOST = "this server can't read its key file any more: its log says what to repair"


class KeyFileError(ConfigError):
    """The key file can't be trusted or read; the text names the path and the remedy."""


class KeyFile:
    """
    The file that holds the keys, one a line; made, checked and replaced here.

    Whoever could have written or read it besides its owner makes it refused.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def __repr__(self) -> str:
        return f"KeyFile({str(self.path)!r})"

    def ensure(self) -> bool:
        """Make the file with a new key if there is none, and check it; True if made."""
        made = False
        try:
            make_folder(self.path.parent)
            # A folder that can't be written to still serves the key it has.
            if not self.path.is_symlink() and not self.path.exists():
                self._check_way()
                made = make_file(self.path, _new_line())
        except OSError as error:
            raise self._refuse(
                f"can't be made: {reason(error)}; set OFA_SCRATCH to a folder of "
                "your own that can be written to"
            ) from None
        if any(len(key) < _WEAK_CHARS for key in self.read()):
            _log.warning("%s holds a key short enough to be guessed", self.path)
        return made

    def read(self) -> tuple[str, ...]:
        """Return the keys. Raises `KeyFileError` unless the file is private, sane."""
        self._check_way()
        try:
            return self._checked()
        except FileNotFoundError:
            raise self._refuse("is missing: `ofa key rotate` makes one") from None
        except UnsafeFile as error:
            raise self._refuse(
                f"{reason(error)}: move it away, then `ofa key rotate` makes a new one"
            ) from None
        except OSError as error:
            raise self._refuse(
                f"can't be read: {reason(error)}; chmod 600 {self.path}"
            ) from None
        except ValueError as error:
            raise self._refuse(str(error)) from None

    def rotate(self) -> None:
        """Replace all keys in the file by one new key; running servers follow."""
        try:
            make_folder(self.path.parent)
            self._check_way()
            write_file(self.path, _new_line())
        except OSError as error:
            raise self._refuse(f"can't be replaced: {reason(error)}") from None

    def _checked(self) -> tuple[str, ...]:
        content, found = read_own(self.path, limit_bytes=LIMIT_BYTES)
        if found.st_nlink > 1:
            # A start that was killed between its two steps, or is between them now.
            finish_making(self.path)
            content, found = read_own(self.path, limit_bytes=LIMIT_BYTES)
        if found.st_nlink > 1:
            raise UnsafeFile(f"has {found.st_nlink} names (hard links)")
        if found.st_mode & 0o077:
            raise ValueError(
                f"is open to others (mode {stat.S_IMODE(found.st_mode):04o}): "
                f"chmod 600 {self.path}, and `ofa key rotate` if it may have been read"
            )
        return _parse(content)

    def _check_way(self) -> None:
        try:
            weak = weakness(self.path.parent)
        except FileNotFoundError:
            raise self._refuse("is missing: `ofa key rotate` makes one") from None
        except OSError as error:
            raise self._refuse(f"can't be reached: {reason(error)}") from None
        if weak:
            raise self._refuse(
                f"is not safe there: {weak}, or set OFA_SCRATCH to a folder of your own"
            )

    def _refuse(self, why: str) -> KeyFileError:
        return KeyFileError(f"the key file {self.path} {why}")


def key_file_in(state: StateFolder, chosen: str) -> KeyFile:
    """Return the key file that was *chosen*, else the one in the state folder."""
    return KeyFile(Path(chosen) if chosen else state.path_of(NAME))


class Keys:
    """
    The keys that are good now: follows the file while the server runs.

    A rotation counts within 2 s. If the file turns unreadable or unsafe, the last
    good keys hold for `KEPT_S`, then every request is refused; auth is never off.
    Its content is compared, not its times: an open also makes NFS look again, where
    stat may answer from a cache of 3 s and more.
    """

    def __init__(
        self, file: KeyFile, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._digests = _digests(file)
        self._looked_s = clock()
        self._doubted_s: float | None = None  # since when no look has succeeded
        self._warned = False

    def check(self, headers: Mapping[str, str]) -> str:
        """Return the id of the key in *headers*. Raises `Unauthorized` otherwise."""
        credential = only_credential(headers)
        self._look_again()
        doubted_s = self._doubted_s
        if doubted_s is not None and self._clock() - doubted_s > KEPT_S:
            raise Unauthorized(_LOST)
        given = _digest(credential)
        matching = b""
        for known in self._digests:  # all of them, whichever fits: no early exit
            matching = known if secrets.compare_digest(known, given) else matching
        if not matching:
            raise Unauthorized(_WRONG)
        return key_id(matching)

    def _look_again(self) -> None:
        now_s = self._clock()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        # One thread looks; the others go on, so a hanging file system holds up one.
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._looked_s = now_s
            if self._doubted_s is None:
                self._doubted_s = now_s
            self._look()
        finally:
            self._lock.release()

    def _look(self) -> None:
        try:
            digests = _digests(self._file)
        except KeyFileError as error:
            if not self._warned:
                _log.warning("%s; its last keys hold for %d s more", error, KEPT_S)
            self._warned = True
            return
        if self._warned or digests != self._digests:
            _log.info("the key file was read again: keys=%d", len(digests))
        self._digests, self._doubted_s, self._warned = digests, None, False


class NoAuth:
    """Lets everybody in; for a loopback address only, which the server sees to."""

    def check(self, headers: Mapping[str, str]) -> str:
        """Return the one id that all callers share."""
        return "anyone"


def redacted(headers: Mapping[str, str]) -> str:
    """Return what a log may say of the keys in *headers*: which forms, how long."""
    seen = [f"{name} ({_shape(name, value)})" for name, value in _key_headers(headers)]
    return ", ".join(seen) or "no key header"


def key_id(digest: bytes) -> str:
    """Return the short id that stands for a key in counts and conversations."""
    return digest.hex()[:12]


def only_credential(headers: Mapping[str, str]) -> str:
    """
    Return the one key that *headers* hold, in whichever form; not whether it is good.

    Raises `Unauthorized` for none, an empty one, or two different ones.
    """
    given = {
        credential
        for name, value in _key_headers(headers)
        for credential in _credentials(name, value)
    }
    if not given:
        raise Unauthorized(_MISSING)
    # VS Code sends its own empty Bearer beside a key from "requestHeaders".
    filled = given - {""}
    if not filled:
        raise Unauthorized(_EMPTY)
    if len(filled) > 1:
        raise Unauthorized(_TWO)
    return filled.pop()


def _key_headers(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in headers.items():
        if name.lower() in _HEADERS:
            yield name.lower(), value.strip(" \t")


def _credentials(name: str, value: str) -> Iterator[str]:
    """Yield each key in a header; a repeated header arrives joined by commas."""
    items = value.split(",") if len(value) <= _LIST_CHARS else (value,)
    for item in items:
        credential = item.strip(" \t")
        yield _bare(credential) if name == "authorization" else credential


def _bare(credential: str) -> str:
    scheme, *rest = _BLANKS.split(credential, maxsplit=1)
    return "".join(rest) if scheme.lower() == "bearer" else credential


def _shape(name: str, value: str) -> str:
    bare = _bare(value) if name == "authorization" else value
    scheme = "bearer, " if bare != value else ""
    return f"{scheme}{len(bare)} characters" if bare else f"{scheme}empty"


def _digests(file: KeyFile) -> tuple[bytes, ...]:
    return tuple(_digest(key) for key in file.read())


def _digest(credential: str) -> bytes:
    # Bytes of one length: compare_digest raises on non-ASCII text, and tells lengths.
    return hashlib.sha256(credential.encode("utf-8", "surrogatepass")).digest()


def _new_line() -> bytes:
    return f"ofa-{secrets.token_urlsafe(32)}\n".encode()


def _parse(content: bytes) -> tuple[str, ...]:
    """Return the keys in *content*, one a line; ValueError says what is wrong."""
    remedy = "save it as plain UTF-8 text, or `ofa key rotate`"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(f"is UTF-16 text: {remedy}")
    if b"\0" in content:
        raise ValueError(f"holds NUL bytes: {remedy}")
    lines = content.removeprefix(codecs.BOM_UTF8).splitlines()  # CR, LF, CRLF
    stripped = ((number, line.strip()) for number, line in enumerate(lines, 1))
    keys = tuple(
        _key(number, line)
        for number, line in stripped
        if line and not line.startswith(b"#")
    )
    if not keys:
        raise ValueError("holds no key: `ofa key rotate` makes one")
    return keys


def _key(number: int, line: bytes) -> str:
    # What a header can carry, less the comma that joins repeated headers.
    if not _KEY.fullmatch(line):
        raise ValueError(
            f"has blanks, commas or non-ASCII characters in line {number}: one key a "
            "line, or `ofa key rotate`"
        )
    return line.decode("ascii")
