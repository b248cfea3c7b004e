"""Who may ask: header forms, the three refusals, rotation while serving."""

import hashlib
import logging
import os
import threading

import pytest

from ofa.auth import KEPT_S, KeyFile, Keys, NoAuth, redacted
from ofa.errors import Unauthorized

KEY = "ofa-" + "Ab1-_" * 8 + "xyz"
OTHER = "ofa-" + "Zz9-_" * 8 + "xyz"
KEY_ID = hashlib.sha256(KEY.encode()).hexdigest()[:12]


class Clock:
    """Time that moves when told to."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        """Return the time."""
        return self.now_s

    def wait(self, seconds):
        """Let *seconds* pass."""
        self.now_s += seconds


@pytest.fixture
def clock():
    """Make a clock that stands still."""
    return Clock()


@pytest.fixture
def path(tmp_path):
    """Make a key file with one key."""
    path = tmp_path / "key"
    put(path, KEY)
    return path


@pytest.fixture
def keys(path, clock):
    """Make the live view of that file."""
    return Keys(KeyFile(path), clock=clock)


def put(path, text, mode=0o600):
    """Replace the key file by rename, as an editor or `ofa key rotate` does."""
    spare = path.with_name("spare")
    spare.write_text(text)
    spare.chmod(mode)
    spare.replace(path)


def bearer(key):
    """Return the headers of an ordinary client."""
    return {"Authorization": f"Bearer {key}"}


def refused(keys, headers):
    """Return the text with which *headers* are refused."""
    with pytest.raises(Unauthorized) as caught:
        keys.check(headers)
    assert caught.value.status == 401
    assert caught.value.code == "invalid_api_key"
    return str(caught.value)


# The forms of a key


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}"},
        {"authorization": f"Bearer {KEY}"},
        {"AUTHORIZATION": f"Bearer {KEY}"},
        {"Authorization": f"bearer {KEY}"},
        {"Authorization": f"BEARER {KEY}"},
        {"Authorization": f"bEaReR {KEY}"},
        {"Authorization": f"Bearer   {KEY}"},
        {"Authorization": f"Bearer\t{KEY}"},
        {"Authorization": f"  Bearer {KEY}  "},
        {"Authorization": f"Bearer {KEY}\t"},
        {"Authorization": KEY},
        {"Authorization": f" {KEY} "},
        {"api-key": KEY},
        {"Api-Key": KEY},
        {"API-KEY": f"{KEY} "},
        {"x-api-key": KEY},
        {"X-API-Key": KEY},
        {"X-Api-Key": f"\t{KEY}"},
        {"openai-api-key": KEY},
        {"OpenAI-API-Key": KEY},
        # One header twice arrives joined by a comma.
        {"Authorization": f"Bearer {KEY}, Bearer {KEY}"},
        {"Authorization": f"Bearer {KEY},{KEY}"},
        {"Authorization": f"Bearer {KEY},"},
        {"x-api-key": f"{KEY}, {KEY}"},
        # The same key in two forms is one credential.
        {"Authorization": f"Bearer {KEY}", "x-api-key": KEY},
        {"Authorization": KEY, "api-key": KEY, "x-api-key": KEY, "openai-api-key": KEY},
        # VS Code's own empty Bearer beside the header of "requestHeaders".
        {"Authorization": "Bearer ", "x-api-key": KEY},
        {"Authorization": "Bearer", "api-key": KEY},
        {"Authorization": "", "openai-api-key": KEY},
        {"Accept": "text/event-stream", "x-request-id": "1", "api-key": KEY},
    ],
)
def test_K3_spellings_that_are_let_in(keys, headers):
    """Five header forms, any case, extra blanks, the same key more than once."""
    assert keys.check(headers) == KEY_ID


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": f"Bearer: {KEY}"},
        {"Authorization": f"Bearer={KEY}"},
        {"Authorization": f"Bearer{KEY}"},
        {"Authorization": f"Token {KEY}"},
        {"Authorization": f'Bearer "{KEY}"'},
        {"Authorization": f"Bearer {KEY} {KEY}"},
        {"Authorization": f"Bearer {KEY[:-1]}"},
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": f"Bearer {KEY.lower()}"},
        {"Authorization": f"Bearer {KEY[4:]}"},
        {"Authorization": f"Bearer {KEY}\0"},
        {"Authorization": f"Bearer {KEY}\xa0"},
        {"Authorization": f"Bearer {KEY};x"},
        {"Authorization": "Bearer schlüssel"},
        {"Authorization": "Bearer \udcff\ud800"},
        {"Authorization": "Bearer " + "ключ" * 10},
        {"Authorization": "Bearer " + "x" * 1_000_000},
        {"Authorization": "Bearer " + f"{KEY}," * 30_000},
        {"x-api-key": f"Bearer {KEY}"},
        {"api-key": "\0" * 100},
        {"openai-api-key": KEY[:8]},
    ],
)
def test_N4_wrong_keys_are_refused_and_nothing_else_is_raised(keys, headers):
    """Prefixes, foreign schemes, non-ASCII, NUL and a megabyte are wrong keys."""
    text = refused(keys, headers)

    assert "a wrong API key" in text
    assert KEY[:8] not in text
    assert keys.check(bearer(KEY)) == KEY_ID


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Cookie": f"key={KEY}"},
        {"Proxy-Authorization": f"Bearer {KEY}"},
        {"X-Authorization": f"Bearer {KEY}"},
        {"api_key": KEY},
        {"Accept": "*/*"},
    ],
)
def test_a_missing_key_is_said(keys, headers):
    """No header of the five is another mistake than a wrong key."""
    assert "no API key" in refused(keys, headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer"},
        {"Authorization": "bearer \t "},
        {"Authorization": ""},
        {"Authorization": ","},
        {"Authorization": "Bearer , Bearer "},
        {"x-api-key": ""},
        {"api-key": " ", "Authorization": "Bearer "},
    ],
)
def test_an_empty_key_names_vs_codes_remedy(keys, headers):
    """VS Code with a key typed into its JSON file sends just this."""
    text = refused(keys, headers)

    assert "empty API key" in text
    assert "gear -> Update API Key" in text
    assert "ofa byok write" in text
    assert "requestHeaders" in text


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}", "x-api-key": OTHER},
        {"Authorization": f"Bearer {KEY}, Bearer {OTHER}"},
        {"Authorization": f"Bearer {KEY}", "authorization": OTHER},
        {"api-key": KEY, "openai-api-key": "not-a-key"},
        {"x-api-key": f"{KEY},{KEY[:-1]}"},
    ],
)
def test_K3_two_different_credentials_are_refused(path, clock, headers):
    """Even if both are good: which one counts would be a guess."""
    put(path, f"{KEY}\n{OTHER}\n")
    keys = Keys(KeyFile(path), clock=clock)

    assert "two different API keys" in refused(keys, headers)


def test_the_three_refusals_differ(keys):
    """A person can tell from the text which mistake it is."""
    texts = {
        refused(keys, {}),
        refused(keys, bearer("")),
        refused(keys, bearer("wrong")),
    }

    assert len(texts) == 3


def test_K2_each_of_many_keys_has_its_own_id(path, clock):
    """A thousand keys in any order, each told apart by a short id."""
    many = [f"{KEY}{number:04}" for number in range(1000)]
    put(path, "\n".join(many))
    keys = Keys(KeyFile(path), clock=clock)

    ids = [keys.check(bearer(key)) for key in many]

    assert len(set(ids)) == 1000
    assert all(len(one) == 12 for one in ids)
    assert "wrong" in refused(keys, bearer(KEY))


def test_no_auth_lets_everybody_in_under_one_id():
    """Without keys all callers are the same."""
    assert NoAuth().check({}) == NoAuth().check(bearer(KEY)) == "anyone"


# Rotation while serving


def test_K1_rotation_counts_within_two_seconds(keys, path, clock):
    """The new key is good and the old one refused, without a restart."""
    KeyFile(path).rotate()
    (new,) = KeyFile(path).read()
    clock.wait(2)

    assert keys.check(bearer(new)) == hashlib.sha256(new.encode()).hexdigest()[:12]
    assert "wrong" in refused(keys, bearer(KEY))


def test_K1_the_file_is_looked_at_twice_a_second_at_most(keys, path, clock):
    """A burst of requests costs one look."""
    put(path, OTHER)
    clock.wait(0.4)
    assert keys.check(bearer(KEY))

    clock.wait(0.2)

    assert "wrong" in refused(keys, bearer(KEY))


def test_K1_a_rewrite_in_place_of_the_same_size_and_time_is_seen(keys, path, clock):
    """Neither inode, size nor time has to change for a new key to count."""
    before = path.stat()
    path.write_text(OTHER)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size)
    assert before.st_mtime_ns == after.st_mtime_ns
    clock.wait(1)

    assert keys.check(bearer(OTHER))
    assert "wrong" in refused(keys, bearer(KEY))


def remove(path):
    """Delete the key file."""
    path.unlink()


def widen(path):
    """Open the key file to others."""
    path.chmod(0o644)


def empty(path):
    """Leave the file as an editor does between truncating and writing."""
    path.write_text("")


def garble(path):
    """Save the file in a form that holds no key."""
    path.write_bytes(b"\0\1\2")


def link(path):
    """Put a link in its place."""
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def widen_folder(path):
    """Let others replace the file."""
    path.parent.chmod(0o777)


@pytest.mark.parametrize("spoil", [remove, widen, empty, garble, link, widen_folder])
def test_K1_a_spoilt_file_keeps_the_last_keys_for_a_minute(
    keys, path, clock, caplog, spoil
):
    """One warning, a minute of grace, then nobody is let in; auth is never off."""
    spoil(path)
    clock.wait(1)
    for _ in range(int(KEPT_S)):
        assert keys.check(bearer(KEY)) == KEY_ID
        assert "wrong" in refused(keys, bearer("nonsense"))
        assert "no API key" in refused(keys, {})
        clock.wait(1)
    clock.wait(1)

    assert "can't read its key file" in refused(keys, bearer(KEY))
    assert "can't read its key file" in refused(keys, bearer("nonsense"))
    warnings = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert str(path) in caplog.text
    assert KEY[:12] not in caplog.text


@pytest.mark.parametrize("after_s", [10, 1000])
def test_K1_a_repaired_file_counts_at_once(keys, path, clock, after_s):
    """Before or after the minute, a good file ends the trouble."""
    remove(path)
    clock.wait(1)
    keys.check(bearer(KEY))
    clock.wait(after_s)

    put(path, OTHER)
    clock.wait(1)

    assert keys.check(bearer(OTHER))
    assert "wrong" in refused(keys, bearer(KEY))


def test_K1_the_minute_starts_anew_after_a_repair(keys, path, clock):
    """Trouble that ended does not count towards the next one."""
    remove(path)
    clock.wait(1)
    keys.check(bearer(KEY))
    clock.wait(50)
    put(path, KEY)
    clock.wait(1)
    keys.check(bearer(KEY))
    remove(path)
    clock.wait(1)
    keys.check(bearer(KEY))
    clock.wait(50)

    assert keys.check(bearer(KEY)) == KEY_ID


def test_K1_a_quiet_server_gives_the_minute_from_its_first_look(keys, path, clock):
    """An hour without requests is not an hour of trouble."""
    clock.wait(3600)
    remove(path)

    assert keys.check(bearer(KEY)) == KEY_ID


class Watched(KeyFile):
    """A key file that tells when it has been read."""

    def __init__(self, path):
        super().__init__(path)
        self.seen = threading.Event()

    def read(self):
        """Return the keys, and tell."""
        found = super().read()
        self.seen.set()
        return found


def test_K1_fifty_rotations_under_load(path, clock):
    """Threads that ask all the time see good keys or "wrong", never an error."""
    file = Watched(path)
    keys = Keys(file, clock=clock)
    stop = threading.Event()
    failures = []

    def ask():
        while not stop.is_set():
            try:
                keys.check(bearer(KEY))
            except Unauthorized as error:
                if "wrong" not in str(error):
                    failures.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(50):
        file.seen.clear()
        put(path, KEY if number % 2 else OTHER)
        clock.wait(1)
        assert file.seen.wait(30)
    stop.set()
    for thread in threads:
        thread.join()

    assert failures == []
    assert keys.check(bearer(KEY)) == KEY_ID


class Hanging:
    """A key file on a file server that stopped answering; stands in for `KeyFile`."""

    def __init__(self):
        self.hangs = False
        self.asked, self.released = threading.Event(), threading.Event()

    def read(self):
        """Return the key, or wait for the server."""
        if self.hangs:
            self.asked.set()
            self.released.wait(30)
        return (KEY,)


def test_a_hanging_file_server_holds_up_one_request(clock):
    """The others go on with the last keys, for a minute, then are refused."""
    file = Hanging()
    keys = Keys(file, clock=clock)
    file.hangs = True
    clock.wait(1)
    stuck = threading.Thread(target=keys.check, args=(bearer(KEY),))
    stuck.start()
    file.asked.wait(30)

    try:
        assert keys.check(bearer(KEY)) == KEY_ID
        clock.wait(KEPT_S + 1)
        assert "can't read its key file" in refused(keys, bearer(KEY))
    finally:
        clock.wait(-KEPT_S)
        file.released.set()
        stuck.join()
    assert keys.check(bearer(KEY)) == KEY_ID


# What may be logged


@pytest.mark.parametrize(
    ("headers", "line"),
    [
        ({}, "no key header"),
        ({"Cookie": "x"}, "no key header"),
        (bearer(KEY), "authorization (bearer, 47 characters)"),
        (bearer(""), "authorization (bearer, empty)"),
        ({"Authorization": KEY}, "authorization (47 characters)"),
        ({"X-API-KEY": "abc"}, "x-api-key (3 characters)"),
        ({"api-key": ""}, "api-key (empty)"),
        (
            {"Authorization": "Bearer ", "x-api-key": KEY},
            "authorization (bearer, empty), x-api-key (47 characters)",
        ),
        ({"Authorization": "Basic dXNlcjpwYXNz"}, "authorization (18 characters)"),
    ],
)
def test_the_redacted_line_tells_forms_and_lengths(headers, line):
    """Enough to tell the mistake, nothing to use."""
    assert redacted(headers) == line


def test_N6_no_window_of_the_key_is_told(keys):
    """No eight characters of a key in any text, repr or refusal."""
    told = redacted(bearer(KEY)) + repr(keys) + repr(vars(keys)) + repr(NoAuth())
    told += refused(keys, bearer(KEY + "x")) + refused(keys, {"api-key": KEY[:20]})
    told += redacted({"Authorization": f"Basic {KEY}", "x-api-key": KEY[:20]})

    windows = [KEY[at : at + 8] for at in range(len(KEY) - 7)]
    assert not [window for window in windows if window in told]
