"""What git is asked to do: addresses, names and tokens that it must not be given are refused before anything runs."""

import pytest

from skerry.control.git import Auth, Clone, Operation, Pull, Push, command_of
from skerry.model.errors import Invalid

AUTH = Auth("me", "s3cret")


@pytest.mark.parametrize(
    "url",
    [
        "https://host/a/b.git",
        "http://127.0.0.1:80/a",
        "https://[::1]:443/a",
        "ssh://git@host/a",
        "git@host:a/b.git",
        "host:a",
        "git://host/a",
        "file:///srv/a",
        "/srv/a",
    ],
)
def test_an_address_is_taken(url: str) -> None:
    assert command_of(Clone(url), None).argv[-1] == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "-oProxyCommand=x",
        "--upload-pack=x",
        "ext::sh -c id",
        "EXT::sh",
        "fd::17",
        "foo::https://host/a",
        "ftp://host/a",
        "javascript:x y",
        "https://",
        "https://host/a\nb",
        "https://host/a\0",
        "https://[::1/a",
        "relative/path",
        "https://user@host/a",
        "https://user:pw@host/a",
        "https://:pw@host/a",
    ],
)
def test_an_address_that_is_none_or_carries_a_secret_is_refused(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        command_of(Clone(url), None)
    assert refused.value.field == "url"
    assert "pw" not in refused.value.message


@pytest.mark.parametrize("url", ["ssh://host/a", "git@host:a", "/srv/a", "file:///a", "git://host/a"])
def test_a_token_is_for_http_alone(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        command_of(Clone(url), AUTH)
    assert refused.value.field == "auth"


@pytest.mark.parametrize(
    "wanted",
    [
        Clone("https://h/a", branch="-x"),
        Clone("https://h/a", branch="a..b"),
        Clone("https://h/a", branch="a b"),
        Pull("/w", branch="+a"[1:] + ":b"),
        Pull("/w", remote="--upload-pack=x"),
        Pull("/w", remote="https://h/a"),
        Pull("/w", remote="ext::x"),
        Push("/w", branch="--force"),
        Push("/w", branch=":main"),
        Push("/w", remote="-x", branch="b"),
        Push("/w\0"),
    ],
)
def test_names_that_are_options_or_more_than_names_are_refused(wanted: Operation) -> None:
    with pytest.raises(Invalid):
        command_of(wanted, None)


@pytest.mark.parametrize("auth", [Auth("a\nb", "t"), Auth("a", "t\nhost=evil"), Auth("", "t"), Auth("a", "t\0")])
def test_a_token_of_more_than_one_line_is_refused_without_being_told(auth: Auth) -> None:
    with pytest.raises(Invalid) as refused:
        command_of(Clone("https://h/a"), auth)
    assert "evil" not in refused.value.message


def test_the_token_is_on_standard_input_alone() -> None:
    for wanted in (Clone("https://h/a", "p"), Pull("/w"), Push("/w", branch="b")):
        new = command_of(wanted, AUTH)
        assert new.stdin == b"me\ns3cret\nbWU6czNjcmV0\n"
        assert "s3cret" not in repr(new)
        assert new.env["GIT_ALLOW_PROTOCOL"] == "https:http"
        assert command_of(wanted, None).stdin is None


def test_a_path_is_below_the_workspace_or_absolute() -> None:
    assert command_of(Clone("https://h/a", "-p"), None).argv[-1] == "/workspace/-p"
    assert command_of(Pull("repo"), None).cwd == "/workspace/repo"
