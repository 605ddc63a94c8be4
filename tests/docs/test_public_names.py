"""What users must catch, implement or pass is a public name; pages and notebooks import from nowhere else."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import pyspark_rocketmq as rmq
from pyspark_rocketmq import errors
from tests.docs.pages import ROOT, Block, blocks

NOTEBOOKS = sorted((ROOT / "jobs" / "notebooks").glob("*.ipynb"))


def imported_from(code: str) -> set[str]:
    """Modules below the package that ``code`` imports or imports from."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return {name for name in found if name.startswith("pyspark_rocketmq.")}


def test_every_error_is_public() -> None:
    """Else no except clause of a user's would be stable."""
    raised = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.RocketMQError)
    }

    assert raised <= set(rmq.__all__)
    assert all(getattr(rmq, name) is getattr(errors, name) for name in raised)


def test_what_users_implement_or_pass_is_public() -> None:
    assert {
        *("Sink", "SinkBatch", "RowWriter", "Writing", "Written", "OffsetStore", "ConsumeMessageHook"),
        *("CountsRows", "OpensAgain", "RemembersMessages", "RenewsStorage", "UsesSession", "WritesFolders"),
        *("BatchReport", "LocalTransactionState", "SendStatus", "ListenerRun"),
        *("OrderlySettings", "SendBackSettings", "ConsumeHooks"),
        *("OrderlyBy", "OrderlyEngineKind"),
        *("AsyncSends", "CompressionType", "JavaInteger", "split_batch"),
    } <= set(rmq.__all__)


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: f"{block.page}:{block.line}")
def test_pages_import_only_public_names(block: Block) -> None:
    assert imported_from(block.text) == set()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_import_only_public_names(notebook: Path) -> None:
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code" and not cell["source"][0].startswith("%"):
            assert imported_from("".join(cell["source"])) == set()
