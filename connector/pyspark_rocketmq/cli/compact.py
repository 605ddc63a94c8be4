"""Command ``tables compact``: merges a table's many files into few."""

from __future__ import annotations

from deltalake.exceptions import TableNotFoundError
from pyarrow import ArrowException
from rich.console import Console

from pyspark_rocketmq.cli.options import TablesCompactSettings
from pyspark_rocketmq.cli.settings import JobFailed
from pyspark_rocketmq.delta.compaction import Compacted, compact
from pyspark_rocketmq.delta.features import uncompacted_features
from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.delta.paths import TableName, check_exclusive_create
from pyspark_rocketmq.delta.storage_options import StorageOptions
from pyspark_rocketmq.delta.table import STORAGE_ERRORS, TableForm, open_table, read_form
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import OptionError, SchemaError
from pyspark_rocketmq.offsets.delta_rows import VERSION_PROPERTY


def compact_table(settings: TablesCompactSettings, console: Console) -> None:
    """Merge files below half of the table's target file size (half of 128 MiB by default) into larger ones.

    Raises:
        OptionError: If there is no such table, or this command must not write it.
        JobFailed: If the storage does not answer, or a file is damaged.
    """
    where = masked(settings.table)
    if TableName.of(settings.table) is not None:
        named = (
            f"{where} is the name of a catalog's table, and this command takes only the path of a table; run "
            f"OPTIMIZE {where} in Spark"
        )
        raise OptionError((named,), where="tables compact")
    check_exclusive_create(settings.table)
    storage = StorageOptions.parse(settings.storage_secrets)
    try:
        table, log = open_table(settings.table, storage), LogFiles(settings.table, storage)
        form = read_form(table)
        problem = _problem(where, form)
        if problem is not None:
            raise OptionError((problem,), where="tables compact")
        done = compact(table, log)
    except TableNotFoundError:
        problem = f"there is no Delta table at {where}; check option 'table'"
        raise OptionError((problem,), where="tables compact") from None
    except (*STORAGE_ERRORS, ArrowException, SchemaError) as error:
        raise JobFailed(
            f"Not all files of {where} could be compacted: {storage.describe_error(error)} "
            "Its rows are as they were. Check the storage, and run the command again."
        ) from error
    console.print(f"{where}: {_summary(done)}", markup=False, highlight=False)


def _summary(done: Compacted) -> str:
    changed = (
        f"Another writer changed {done.files_changed:,} of the files meanwhile, so these were left as they "
        "are: run the command again."
    )
    if done.files_removed:
        replaced = (
            f"rewrote {done.files_removed:,} files as {done.files_added:,}. The old ones are kept for "
            "queries that read them and for time travel, until VACUUM."
        )
        return f"{replaced} {changed}" if done.files_changed else replaced
    return changed if done.files_changed else "there is nothing to do: no partition has two small files."


def _problem(where: str, form: TableForm) -> str | None:
    """Return the reason why this command must not write a table; None if it may."""
    if VERSION_PROPERTY in form.configuration:
        return f"{where} is an offset table, and the queries that write it also compact it; leave it as it is"
    if refused := uncompacted_features(form):
        return (
            f"only Spark can compact the files of {where}, which has {', '.join(refused)}; run "
            f"OPTIMIZE delta.`{where}` in Spark"
        )
    return None
