"""Values of environments show in no repr, no message and no log line."""

import dataclasses

import pytest
from pydantic import ValidationError

from skerry.control.commands import NewCommand
from skerry.control.sandboxes import NewSandbox
from skerry.model.account import Account
from skerry.model.command import ExecSpec
from skerry.model.env import Env
from skerry.model.ids import new_account_id, new_command_id, new_project_id
from skerry.model.sandbox import Change
from skerry.testing.store_suite import NOW, sandbox_of
from skerry.wire.commands import RunCommand
from skerry.wire.keys import KeyView
from skerry.wire.sandboxes import CreateSandbox, SetEnv

SECRET = "hunter2"
ENV = {"TOKEN": SECRET}
ACCOUNT = Account(new_account_id(), "a", "unlimited", new_project_id(), NOW)


@pytest.mark.parametrize(
    "thing",
    [
        Env(ENV),
        Env(lambda: ENV),
        dataclasses.replace(sandbox_of(ACCOUNT), env=Env(ENV)),
        dataclasses.replace(sandbox_of(ACCOUNT), env=ENV),
        Change(env=ENV),
        NewSandbox(env=ENV),
        NewCommand(shell="x", env=ENV, stdin=SECRET.encode()),
        ExecSpec(id=new_command_id(), shell="x", env=ENV),
        CreateSandbox(env=ENV),
        SetEnv(env=ENV),
        RunCommand(command="x", env=ENV, stdin=SECRET),
        KeyView(id="k", name="n", key=SECRET, created_at=NOW),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_a_secret_shows_in_no_repr(thing: object) -> None:
    for shown in (repr(thing), str(thing), f"{thing}", repr([thing]), repr(ValueError(thing))):
        assert SECRET not in shown


def test_a_shape_that_is_wrong_is_told_without_what_was_sent() -> None:
    for shape, env in ((CreateSandbox, {"1": SECRET}), (SetEnv, SECRET), (RunCommand, SECRET)):
        with pytest.raises(ValidationError) as wrong:
            shape.model_validate({"env": env})
        assert SECRET not in str(wrong.value)


def test_an_environment_is_a_mapping_like_any_other() -> None:
    env = Env(lambda: ENV)
    assert env == ENV == dict(env)
    assert {**env} == ENV
    assert Env({}) == {} and not Env({})
