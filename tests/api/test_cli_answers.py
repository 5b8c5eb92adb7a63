"""The command line against a server: the forms that people type, exit codes, and hints that can be pasted."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry import Sandbox, Skerry

from .conftest import Server


class Shell:
    """A directory and an environment to run `skerry` in."""

    def __init__(self, server: Server, home: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SKERRY_")}
        self.env = {**kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), "SKERRY_URL": server.url}
        self.env["SKERRY_API_KEY"] = server.key
        self.work = home / "work"
        self.work.mkdir()

    def __call__(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "skerry", *words]
        return subprocess.run(
            argv, env={**self.env, **environ}, cwd=self.work, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )


@pytest.fixture
def skerry(server: Server, tmp_path: Path) -> Shell:
    return Shell(server, tmp_path)


@pytest.fixture
def client(server: Server) -> Iterator[Skerry]:
    with Skerry(server.url, server.key) as client:
        yield client


@pytest.fixture
def box(client: Skerry) -> Sandbox:
    return client.create(name="box", env={"OLD": "1"})


def test_variables_are_set_and_unset_with_the_sandbox_first(skerry: Shell, box: Sandbox) -> None:
    assert skerry("env", "set", "box", "A=1", "B=x=y", "HERE", HERE="there").returncode == 0
    assert box.refresh().info.env == {"OLD": "1", "A": "1", "B": "x=y", "HERE": "there"}
    assert skerry("env", "set", "-s", "box", "A=2").returncode == 0
    assert skerry("env", "unset", "box", "OLD", "B", "HERE").returncode == 0
    assert box.refresh().info.env == {"A": "2"}
    assert skerry("env", "unset", "-s", "box", "A").returncode == 0
    assert box.refresh().info.env == {}


def test_variables_of_the_sandbox_in_use_are_set_as_ever(skerry: Shell, box: Sandbox) -> None:
    assert skerry("use", "box").returncode == 0
    assert skerry("env", "set", "A=1", "B", B="2").returncode == 0
    assert skerry("env", "set", "B", "C=3", B="4").returncode == 0
    assert skerry("env", "unset", "A", "OLD").returncode == 0
    assert box.refresh().info.env == {"B": "4", "C": "3"}


def test_a_word_that_may_be_a_sandbox_or_a_variable_is_not_guessed(skerry: Shell, box: Sandbox) -> None:
    for words in (("set", "box", "A=1"), ("set", "box", "A")):
        done = skerry("env", *words, box="secret", A="1")
        assert done.returncode == 1
        assert "-s box" in done.stderr
    assert skerry("use", "box").returncode == 0
    box.set_env({"box": "1", "A": "1"})
    done = skerry("env", "unset", "box", "A")
    assert (done.returncode, "-s box" in done.stderr) == (1, True)
    assert box.refresh().info.env == {"box": "1", "A": "1"}
    assert skerry("env", "set", "box").returncode == 1  # no variable, and nothing to set


def test_a_startup_line_is_set_with_the_sandbox_first(skerry: Shell, box: Sandbox) -> None:
    assert skerry("startup", "set", "box", "echo hi").returncode == 0
    assert box.refresh().startup.get().command == "echo hi"
    assert skerry("startup", "set", "box", "--none").returncode == 0
    assert box.refresh().startup.get().command is None
    assert skerry("startup", "set", "-s", "box", "echo there").returncode == 0
    assert box.refresh().startup.get().command == "echo there"
    assert skerry("startup", "set", "box", "echo", "two words").returncode == 1


def test_a_move_takes_its_target_in_the_same_sandbox_and_in_no_other(
    skerry: Shell, client: Skerry, box: Sandbox
) -> None:
    client.create(name="other")
    box.files.write("a", "x")
    for source, target in (("box:a", "box:b"), ("box:b", ":c"), ("box:c", "d"), ("box:d", f"{box.id}:with:colon")):
        done = skerry("files", "mv", source, target)
        assert done.returncode == 0, done.stderr
    assert box.files.read_text("with:colon") == "x"
    done = skerry("files", "mv", "box:with:colon", "other:e")
    assert done.returncode == 1
    assert "other" in done.stderr and "cp" in done.stderr
    assert skerry("files", "mv", "box:with:colon", "nobox:e").returncode == 1
    assert skerry("files", "mv", "box:with:colon", "./nobox:e").returncode == 0
    assert box.files.read_text("nobox:e") == "x"


@pytest.mark.parametrize("name", ["plain", "two words", "it's $HOME; `id`", "-rf", "é", "a=b"])
def test_a_hint_can_be_pasted_whatever_the_name(skerry: Shell, client: Skerry, name: str) -> None:
    done = skerry("create", f"--name={name}")
    assert done.returncode == 0, done.stderr
    hinted = shlex.split(done.stderr.partition("Next: ")[2])
    assert hinted[:2] == ["skerry", "exec"]
    assert hinted[2] in (name, done.stdout.strip())
    ran = skerry(*hinted[1:])
    assert (ran.returncode, ran.stdout) == (0, "hello\n"), ran.stderr


def test_a_hint_about_a_script_can_be_pasted(skerry: Shell) -> None:
    done = skerry("run", "my script; ls.py")
    assert done.returncode == 125
    assert "skerry run -- 'my script; ls.py'" in done.stderr


@pytest.mark.parametrize("word", ["cmd_x", "cmd_00000000000000000000"])
def test_logs_of_an_unknown_command_speak_of_a_command(skerry: Shell, word: str) -> None:
    done = skerry("logs", word)
    assert done.returncode == 1
    assert word in done.stderr and "ommand" in done.stderr
    assert "No sandbox" not in done.stderr


def test_logs_of_a_sandbox_whose_name_looks_like_a_command(skerry: Shell, client: Skerry) -> None:
    client.create(name="cmd_x").commands.run("echo here")
    assert skerry("logs", "cmd_x").stdout == "here\n"


def test_a_program_that_is_not_there_is_told_in_plain_words_and_by_127(skerry: Shell, box: Sandbox) -> None:
    done = skerry("exec", "box", "--", "nope")
    assert done.returncode == 127
    assert (
        done.stderr
        == "skerry: the command could not be started: the program 'nope' of 'argv' cannot be run (nope: not found).\n"
    )
    done = skerry("exec", "-w", "/nowhere", "box", "--", "echo")
    assert done.returncode == 125
    assert "could not be started: 'working_directory'" in done.stderr


def test_a_shell_without_a_terminal_says_what_it_needs(skerry: Shell, box: Sandbox) -> None:
    done = skerry("shell", "box")
    assert done.returncode == 125
    assert "-t" not in done.stderr and "skerry exec" in done.stderr
    assert "-t" in skerry("exec", "-it", "box", "--", "sh").stderr


def test_a_build_whose_progress_goes_into_a_file_does_not_fill_it(skerry: Shell) -> None:
    done = skerry("template", "build", "blank")
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) <= 12
