"""Log lines: their form, what is taken out of them, and a file that does not grow for ever."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from skerry import logs
from skerry.redaction import GONE, clean_text, redact


def line(**fields: object) -> dict[str, object]:
    """A line as a process writes it."""
    text = io.StringIO()
    logger = structlog.wrap_logger(
        structlog.WriteLogger(text), processors=[*logs.gathering(), *logs.rendering(text=False)]
    )
    logger.info("it happened", **fields)
    return json.loads(text.getvalue())


def test_a_line_has_its_time_level_and_fields() -> None:
    told = line(sandbox_id="sbx_1", n=3)
    assert (told["event"], told["level"], told["sandbox_id"], told["n"]) == ("it happened", "info", "sbx_1", 3)
    assert str(told["timestamp"]).endswith("Z")


@pytest.mark.parametrize(
    "name", ["env", "key", "token", "git_token", "Authorization", "api-key", "stdin", "ticket", "password", "content"]
)
def test_a_field_that_is_named_like_a_secret_shows_none(name: str) -> None:
    assert line(**{name: "hunter2"})[name] == GONE
    assert line(spec={"deep": [{name: {"A": "hunter2"}}]})["spec"] == {"deep": [{name: GONE}]}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("key skerry_live_AbC-12_xyz failed", f"key skerry_live_{GONE} failed"),
        ("Authorization: Bearer abc.def-123", f"Authorization: Bearer {GONE}"),
        ("git clone https://user:hunter2@host/x.git", f"git clone https://{GONE}@host/x.git"),
        ("https://x-access-token@host/x", f"https://{GONE}@host/x"),
        ("nothing of it: 12:30, a@b, http://host/a@b", "nothing of it: 12:30, a@b, http://host/a@b"),
    ],
)
def test_what_has_the_form_of_a_secret_is_taken_out(text: str, shown: str) -> None:
    assert clean_text(text) == shown
    assert line(reason=text)["reason"] == shown


def test_exceptions_are_cleaned_too_and_show_no_variables() -> None:
    secret = "hunter2"  # noqa: F841 - it must not be shown
    try:
        raise RuntimeError("no way to https://me:hunter2@host")
    except RuntimeError as error:
        told = line(exc_info=error)
    assert "RuntimeError" in str(told["exception"])
    assert "me:hunter2" not in str(told) and f"{GONE}@host" in str(told["exception"])


def test_bytes_and_depths_are_not_shown() -> None:
    deep: dict[str, object] = {"x": "end"}
    for _ in range(50):
        deep = {"x": deep}
    told = redact(None, "info", {"data": b"hunter2", "deep": deep})
    assert told["data"] == "[7 bytes]" and "end" not in str(told["deep"])


def said(form: str, *, terminal: bool) -> str:
    """What a process of its own logs, on a pipe or a terminal."""
    code = f"import structlog, logging; from skerry import logs; logs.configure('info', '{form}');" + (
        "structlog.get_logger().info('hello', n=1); logging.getLogger('lib').warning('token skerry_live_abcdefgh')"
    )
    argv = [sys.executable, "-c", code]
    if not terminal:
        return subprocess.run(argv, stderr=subprocess.PIPE, text=True, check=True).stderr
    ours, theirs = os.openpty()
    with subprocess.Popen(argv, stderr=theirs) as process:
        process.wait(30)
        text = os.read(ours, 65_536).decode()
    os.close(ours)
    os.close(theirs)
    return text


@pytest.mark.parametrize(("form", "terminal"), [("auto", False), ("json", True)])
def test_machines_get_json_of_the_libraries_too(form: str, terminal: bool) -> None:
    first, second = (json.loads(line) for line in said(form, terminal=terminal).split("\n")[:2])
    assert (first["event"], first["n"]) == ("hello", 1)
    assert (second["event"], second["logger"], second["level"]) == (f"token skerry_live_{GONE}", "lib", "warning")


@pytest.mark.parametrize(("form", "terminal"), [("auto", True), ("text", False)])
def test_persons_get_text(form: str, terminal: bool) -> None:
    text = said(form, terminal=terminal)
    assert "hello" in text and "{" not in text and "abcdefgh" not in text


def turned_over(tmp_path: Path, *, most: int, extra: str = "") -> list[str]:
    """A process writes ten lines of 100 bytes to its log, turning it over after each; the files that are there then."""
    log = tmp_path / "serve.log"
    code = f"""
import sys
from pathlib import Path
from skerry import logs
for n in range(10):
    sys.stderr.write(f"{{n}}".ljust(99) + "\\n"); sys.stderr.flush()
    logs.turn_over(Path({str(log)!r}), {most})
{extra}"""
    with log.open("ab") as sink:
        subprocess.run([sys.executable, "-c", code], stderr=sink, check=True)
    return sorted(path.name for path in tmp_path.iterdir())


def test_a_log_file_is_turned_over_and_no_line_is_lost(tmp_path: Path) -> None:
    assert turned_over(tmp_path, most=550) == ["serve.log", "serve.log.1"]
    earlier, now = (tmp_path / "serve.log.1").read_text(), (tmp_path / "serve.log").read_text()
    assert [int(line) for line in (earlier + now).splitlines()] == list(range(10))
    assert len(earlier) == 600 and (tmp_path / "serve.log.1").stat().st_mode & 0o777 == 0o600


def test_a_log_that_is_small_or_anothers_stays(tmp_path: Path) -> None:
    assert turned_over(tmp_path, most=5000) == ["serve.log"]
    moved = f"Path({str(tmp_path / 'serve.log')!r}).rename({str(tmp_path / 'moved')!r})"
    other = f"{moved}; Path({str(tmp_path / 'serve.log')!r}).write_text('x'); assert not logs.turn_over("
    extra = f"{other}Path({str(tmp_path / 'serve.log')!r}), 10)"
    assert turned_over(tmp_path, most=50_000, extra=extra) == ["moved", "serve.log"]
