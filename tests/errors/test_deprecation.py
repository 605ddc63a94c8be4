from __future__ import annotations

import asyncio
import inspect
import pickle

import pytest

import pyspark_rocketmq as rmq
from pyspark_rocketmq.deprecation import deprecated
from tests.docs.pages import ROOT


def read(topic: str, *, most: int = 1) -> str:
    """Read a topic."""
    return f"{most} of {topic}"


@deprecated("rmq.read()", since="0.2", until="0.4", name="rmq.get()")
def get(topic: str, *, most: int = 1) -> str:
    """Read a topic."""
    return read(topic, most=most)


@deprecated("read_async()", since="0.2", until="0.4")
async def get_async(topic: str) -> str:
    return read(topic)


class Reader:
    def __init__(self, topic: str) -> None:
        self.topic = topic

    @deprecated("Reader.read()", since="0.3", until="0.5")
    def get(self) -> str:
        return read(self.topic)


@deprecated("Reader", since="0.2", until="0.4", name="rmq.Getter")
class Getter(Reader):
    """Reads."""


class OwnGetter(Getter):
    pass


def test_a_deprecated_function_warns_at_the_line_of_its_caller_and_does_the_same() -> None:
    with pytest.warns(FutureWarning) as caught:
        assert get("orders", most=2) == "2 of orders"
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]

    assert [(warning.filename, warning.lineno, str(warning.message)) for warning in caught] == [
        (__file__, line, "rmq.get() is deprecated since 0.2 and will be removed in 0.4; use rmq.read()")
    ]


def test_a_deprecated_function_keeps_its_name_signature_and_docstring() -> None:
    assert (get.__name__, get.__doc__) == ("get", "Read a topic.")
    assert inspect.signature(get) == inspect.signature(read)
    assert "use rmq.read()" in get.__deprecated__  # type: ignore[attr-defined]


def test_a_deprecated_coroutine_function_warns_when_it_is_called() -> None:
    with pytest.warns(FutureWarning, match=r"^get_async\(\) is deprecated since 0\.2"):
        call = get_async("orders")

    assert asyncio.run(call) == "1 of orders"


def test_a_deprecated_method_warns_under_its_class() -> None:
    with pytest.warns(FutureWarning, match=r"^Reader\.get\(\) is deprecated.* use Reader\.read\(\)$"):
        assert Reader("orders").get() == "1 of orders"


@pytest.mark.parametrize("kind", [Getter, OwnGetter])
def test_a_deprecated_class_and_its_subclasses_warn_when_they_are_made(kind: type[Getter]) -> None:
    with pytest.warns(FutureWarning, match=r"^rmq\.Getter is deprecated") as caught:
        made = kind("orders")

    assert made.topic == "orders"
    assert caught[0].filename == __file__
    assert isinstance(made, Reader)


def test_a_deprecated_class_is_still_a_class_that_can_be_pickled() -> None:
    with pytest.warns(FutureWarning):
        made = Getter("orders")

    assert pickle.loads(pickle.dumps(made)).topic == "orders", "without a second warning"


def test_the_parent_of_a_deprecated_class_does_not_warn() -> None:
    assert Reader("orders").topic == "orders"


def test_every_deprecated_public_name_is_listed_among_the_names_that_change() -> None:
    listed = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").partition("## Names that change")[2]
    public = {name: getattr(rmq, name) for name in rmq.__all__}
    methods = {
        f"{name}.{member}": value
        for name, kind in public.items()
        if inspect.isclass(kind)
        for member, value in vars(kind).items()
    }

    old = [
        name
        for name, value in {**public, **methods}.items()
        if "__deprecated__" in getattr(value, "__dict__", {})
    ]

    assert [name for name in old if f"`rmq.{name}`" not in listed] == []
