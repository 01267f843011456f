"""Rows of Parquet files, through the optional library pyarrow."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import InputError, MissingExtraError
from vitrail.evaluate.data.files import one_line

if TYPE_CHECKING:
    from pyarrow import Table


def parquet_rows(paths: list[Path]) -> tuple[tuple[str, ...], int, Callable[[int, str], Mapping[str, Any]]]:
    """Columns, number of rows, and the function that reads a row, of files that follow one another."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError(f"{paths[0]} is read with pyarrow: pip install 'vitrail[data]'") from error
    tables = []
    for path in paths:
        try:
            tables.append(parquet.read_table(path))
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(f"{path} cannot be read as Parquet: {one_line(error)}") from error
    try:
        table = pyarrow.concat_tables(tables)
    except pyarrow.ArrowException as error:
        raise InputError(f"{paths[0]} and the files beside it have different columns: {one_line(error)}") from error
    return tuple(table.column_names), table.num_rows, partial(_row, table)


def _row(table: "Table", number: int, key: str) -> Mapping[str, Any]:
    return table.slice(number, 1).to_pylist()[0]
