"""Which server and which sandbox a command line means: logins, keys and directories' context files."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.cli import context, logins, private
from skerry.cli.connection import address
from skerry.model.errors import Invalid, Refused, Unauthorized

BOX = "sbx_00000000000000000000"
SERVER = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SKERRY_URL", "SKERRY_API_KEY", "SKERRY_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "skerry"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    place = tmp_path / "work" / "deep"
    place.mkdir(parents=True)
    return place


def test_use_counts_for_the_directory_and_below_it(work: Path) -> None:
    context.use(BOX, SERVER, work.parent)
    for place in (work.parent, work):
        assert context.current(place) == context.Context(work.parent, BOX, SERVER)
    assert context.current(work.parent.parent) is None


def test_a_context_file_holds_a_sandbox_and_a_server_and_no_key(work: Path) -> None:
    logins.keep(SERVER, "the-key")
    path = context.use(BOX, SERVER, work)
    assert json.loads(path.read_text()) == {"sandbox": BOX, "server": SERVER}


def test_a_context_file_that_came_with_a_repository_is_told_and_not_used(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / ".skerry").write_text(json.dumps({"sandbox": BOX, "server": SERVER}))
    assert context.current(work) is None
    assert "not used" in capsys.readouterr().err


def test_a_context_file_that_was_changed_or_moved_is_not_used(work: Path) -> None:
    path = context.use(BOX, SERVER, work)
    moved = work.parent / "moved"
    moved.mkdir()
    (moved / ".skerry").write_bytes(path.read_bytes())
    path.write_text(path.read_text().replace("sbx_0", "sbx_1"))
    assert context.current(work) is None
    assert context.current(moved) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[]", b"{}", b"[" * 4000, b'{"sandbox": 1, "server": 2}', b'{"sandbox": "../x", "server": "y"}'],
)
def test_a_file_of_that_name_that_is_no_context_is_none(work: Path, content: bytes) -> None:
    (work / ".skerry").write_bytes(content)
    assert context.current(work) is None


def test_links_pipes_and_directories_of_that_name_are_no_context(work: Path) -> None:
    path = context.use(BOX, SERVER, work)
    kept = path.rename(work / "kept")
    path.symlink_to(kept)
    assert context.current(work) is None
    with pytest.raises(Invalid, match="no regular file"):
        context.use(BOX, SERVER, work)
    path.unlink()
    os.mkfifo(path)
    assert context.current(work) is None
    path.unlink()
    path.mkdir()
    assert context.current(work) is None


def test_forget_takes_away_only_what_use_wrote(work: Path) -> None:
    context.use(BOX, SERVER, work)
    assert context.forget(work) is True
    assert not (work / ".skerry").exists()
    (work / ".skerry").write_text("somebody's")
    assert context.forget(work) is False
    assert (work / ".skerry").read_text() == "somebody's"


def test_a_login_is_readable_by_its_user_alone(config: Path) -> None:
    path = logins.keep(SERVER, "the-key")
    assert path == config / "login.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert address() == (SERVER, "the-key")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_login_that_others_may_read_or_write_is_refused(mode: int) -> None:
    logins.keep(SERVER, "the-key").chmod(mode)
    with pytest.raises(Refused, match="chmod 600"):
        address()


def test_a_login_through_a_link_is_refused(tmp_path: Path) -> None:
    path = logins.keep(SERVER, "the-key")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused):
        logins.current()


def test_a_damaged_login_is_said_to_be(config: Path) -> None:
    logins.keep(SERVER, "the-key").write_text("{")
    with pytest.raises(Refused, match="damaged"):
        private.read("login.json")


def test_a_key_goes_to_the_server_that_it_was_kept_for_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    logins.keep("https://one.example", "key-one")
    logins.keep("https://two.example", "key-two")
    assert address() == ("https://two.example", "key-two")
    monkeypatch.setenv("SKERRY_URL", "https://one.example/")
    assert address() == ("https://one.example/", "key-one")
    monkeypatch.setenv("SKERRY_URL", "https://three.example")
    with pytest.raises(Unauthorized):
        address()


def test_the_environment_goes_before_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    logins.keep("https://one.example", "key-one")
    monkeypatch.setenv("SKERRY_URL", SERVER)
    monkeypatch.setenv("SKERRY_API_KEY", "other")
    assert address() == (SERVER, "other")


def test_logout_forgets_the_key(config: Path) -> None:
    logins.keep(SERVER, "the-key")
    assert logins.forget(SERVER) is True
    assert logins.forget(SERVER) is False
    assert logins.current() is None
    assert "the-key" not in (config / "login.json").read_text()


def login(*words: str, key: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "skerry", "login", *words], input=key, capture_output=True, text=True)


def test_login_sends_no_key_over_plain_http_to_another_machine(config: Path) -> None:
    done = login("http://192.0.2.1:1", key="the-key\n")
    assert done.returncode == 1
    assert "--insecure" in done.stderr
    assert not config.exists()


def test_login_keeps_nothing_that_does_not_work(config: Path) -> None:
    done = login(SERVER, key="the-key\n")
    assert done.returncode == 1
    assert "the-key" not in done.stdout + done.stderr
    assert not config.exists()


def test_login_takes_no_key_as_an_argument() -> None:
    assert login(SERVER, "the-key").returncode == 2
    assert "key" not in [word.strip("-") for word in login("--help").stdout.split() if word.startswith("-")]
