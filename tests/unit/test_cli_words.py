"""What of a command line is ours and what the command's; keys that are typed; words that a shell may complete."""

from collections.abc import Callable

import pytest
import typer
from typer.testing import CliRunner

from skerry.cli.completion import _offered  # pyright: ignore[reportPrivateUsage]
from skerry.cli.interactive import Escape
from skerry.cli.words import PASS_ON, WithCommand, bare, is_marked, split
from skerry.model.errors import Invalid


def parsed(*typed: str) -> list[str]:
    """The words that a command of ours is given for this command line."""
    seen: list[str] = []
    app = typer.Typer()

    @app.command(cls=WithCommand, context_settings=PASS_ON)
    def command(words: list[str], user: str = typer.Option("", "-u")) -> None:  # pyright: ignore[reportUnusedFunction]
        seen.extend(words)

    done = CliRunner().invoke(app, list(typed))
    assert done.exit_code == 0, done.output
    return seen


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["box", "--", "ls", "-l"], ("box", ["ls", "-l"])),
        (["box", "ls", "-l"], ("box", ["ls", "-l"])),
        (["--", "ls", "-l"], (None, ["ls", "-l"])),
        (["-u", "me", "--", "ls"], (None, ["ls"])),
        (["-u", "me", "box", "--", "ls"], ("box", ["ls"])),
        (["box", "git", "log", "--", "file"], ("box", ["git", "log", "--", "file"])),
        (["box", "--", "git", "log", "--", "file"], ("box", ["git", "log", "--", "file"])),
        (["--", "git", "log", "--", "file"], (None, ["git", "log", "--", "file"])),
        (["--", "--", "x"], (None, ["--", "x"])),
        (["box", "--", "--", "x"], ("box", ["--", "x"])),
    ],
)
def test_a_command_line_is_split_as_it_was_typed(typed: list[str], meant: tuple[str | None, list[str]]) -> None:
    assert split(parsed(*typed)) == meant


def test_without_a_command_it_says_so() -> None:
    with pytest.raises(Invalid, match="Give a command"):
        split(parsed("box"))


def test_a_command_in_a_new_sandbox_is_known_by_its_dashes() -> None:
    assert is_marked(parsed("--", "a.py"))
    assert not is_marked(parsed("a.py", "--", "x"))
    assert bare(parsed("a.py", "--", "x")) == ["a.py", "--", "x"]


@pytest.mark.parametrize(
    ("typed", "passed", "asked"),
    [
        ([b"~."], b"", "leave"),
        ([b"~", b"."], b"", "leave"),
        ([b"ls\r~."], b"ls\r", "leave"),
        ([b"a~."], b"a~.", ""),
        ([b"~~x"], b"~x", ""),
        ([b"~/bin\r"], b"~/bin\r", ""),
        ([b"~?x"], b"x", "help"),
        ([b"~?~."], b"", "leave"),
        ([b"~?" * 2048], b"", "help"),
        ([b"\r~~."], b"\r~.", ""),
    ],
)
def test_the_escape_keys_are_found_at_a_lines_beginning_alone(typed: list[bytes], passed: bytes, asked: str) -> None:
    escape = Escape()
    took = [escape.take(keys) for keys in typed]
    assert b"".join(keys for keys, _ in took) == passed
    assert took[-1][1] == asked


def test_a_shell_is_offered_words_that_it_cannot_take_for_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKERRY_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("SKERRY_API_KEY", "k")
    names = ["good-one", "$(touch x)", "`id`", "a b", "a;b", "a'b", "-rf", "a\nb", "*"]
    ask: Callable[[object], list[str]] = lambda server: names  # noqa: E731
    assert _offered("", ask) == ["good-one"]


def test_completion_is_silent_without_a_server(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from skerry.cli.completion import complete_sandbox

    monkeypatch.setenv("SKERRY_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("SKERRY_API_KEY", "k")
    assert complete_sandbox("") == []
    assert capfd.readouterr() == ("", "")
