"""Actions that follow an import."""

import inspect
import sys

import pytest

from nbaccel.launch.worker.after_import import after_import


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that nobody has imported."""
    (tmp_path / "a_late_module.py").write_text("value = 1\ndef function():\n    return value\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield "a_late_module"
    sys.modules.pop("a_late_module", None)


def test_the_action_runs_once_the_module_is_whole(module):
    seen = []
    after_import({module: lambda it: seen.append(it.value)})
    assert seen == []
    imported = __import__(module)
    assert seen == [1]
    assert inspect.getsource(imported.function).startswith("def function")
    assert type(imported.__loader__).__module__ != after_import.__module__


def test_a_module_that_is_there_is_acted_on_now(module):
    __import__(module)
    seen = []
    after_import({module: lambda it: seen.append(it.value)})
    assert seen == [1]


def test_the_last_of_several_actions_counts(module):
    seen = []
    after_import({module: lambda _: seen.append("first")})
    after_import({module: lambda _: seen.append("last")})
    __import__(module)
    assert seen == ["last"]


def test_an_action_that_fails_warns_and_the_module_is_there(module):
    def fail(_):
        raise AttributeError("another version")

    after_import({module: fail})
    with pytest.warns(RuntimeWarning, match=r"a_late_module.*AttributeError: another version"):
        assert __import__(module).value == 1


def test_a_missing_module_is_missing_as_ever(module):
    after_import({"no_such_module_anywhere": print})
    with pytest.raises(ModuleNotFoundError):
        __import__("no_such_module_anywhere")
