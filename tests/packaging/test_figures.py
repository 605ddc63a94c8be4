"""The figures of a checkout are those of its files."""

from __future__ import annotations

from pathlib import Path

from scripts.figures import figures


def test_the_figures_of_a_small_checkout(tmp_path: Path) -> None:
    for name, text in {
        "connector/package/__init__.py": '"""It."""\n',
        "connector/package/small.py": "lock = Lock()\n" + "x" * 111 + "\n",
        "connector/package/large.py": "pass\n" * 60,
        "tests/test_it.py": "pass\n" * 126,
        "docs/page.md": "| three short words |\n",
        "docs/options.md": "generated\n",
        "docs/glossary.md": "**topic** a name\n\n**queue** a part\n",
        "README.md": "two words\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    values = {figure.name: (figure.value, figure.detail) for figure in figures(tmp_path)}

    assert values == {
        "modules in the connector": (2, ""),
        "modules in the largest folder": (2, "package"),
        "modules under 60 lines": (1, "small"),
        "lines over 110 characters": (1, "connector, broker_sim"),
        "modules with locks": (1, "small"),
        "lines of the connector": (63, ""),
        "lines of tests to a line of it": (2.0, ""),
        "words of hand-written documentation": (9, "docs"),
        "terms in the glossary": (2, ""),
    }
