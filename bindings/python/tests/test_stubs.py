"""The stubs say what is there: every name and every parameter, both ways."""

import ast
import inspect
import pathlib
import sys

import kvrail
from kvrail import _native

STUB = pathlib.Path(kvrail.__file__).with_name("_native.pyi")


def parameters(function):
    arguments = function.args
    names = [one.arg for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
    return [name for name in names if name != "self"]


def stubbed():
    """Public functions by name, and public members by class: their parameters, or None for a property."""
    functions, classes = {}, {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = parameters(node)
        if isinstance(node, ast.ClassDef):
            members = {}
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    marks = [getattr(mark, "id", None) for mark in member.decorator_list]
                    members[member.name] = None if "property" in marks else parameters(member)
            classes[node.name] = members
    return functions, classes


def test_functions_and_classes_are_the_same():
    functions, classes = stubbed()
    there = {name: thing for name, thing in vars(_native).items() if not name.startswith("_")}
    assert {name for name, thing in there.items() if inspect.isclass(thing)} == set(classes)
    assert {name for name, thing in there.items() if not inspect.isclass(thing)} == set(functions)
    for name, expected in functions.items():
        assert list(inspect.signature(there[name]).parameters) == expected, name


def test_members_are_the_same_with_their_parameters():
    _, classes = stubbed()
    for name, members in classes.items():
        kind = getattr(_native, name)
        # Object's own are no promise; of the others that begin alike, the stub has to name each.
        plumbing = {"__doc__", "__module__", "__new__", "__repr__"}
        there = {member for member in vars(kind) if member not in plumbing}
        promised = {member for member in members if member != "__init__"}
        assert there == promised, name
        for member, expected in members.items():
            if expected is None:
                assert not callable(vars(kind)[member]), f"{name}.{member}"
            elif not member.startswith("__"):
                got = [p for p in inspect.signature(getattr(kind, member)).parameters if p != "self"]
                assert got == expected, f"{name}.{member}"
    # Python 3.9 finds no signature of a class whose ABI is the stable one.
    if sys.version_info >= (3, 10):
        assert list(inspect.signature(kvrail.Engine).parameters) == classes["Engine"]["__init__"]


def test_the_package_exports_what_it_says_and_is_typed():
    assert all(hasattr(kvrail, name) for name in kvrail.__all__)
    assert STUB.with_name("py.typed").is_file()
    assert kvrail.__version__ == _native.__version__
