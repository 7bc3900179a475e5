"""A run's requests and readings as tables: columns of one length, as numpy arrays."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cadenza.errors import UsageError
from cadenza.readings import Sample
from cadenza.record import Record
from cadenza.stats import latency
from cadenza.stats.columns import Columns

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

# Columns of readings that no label replaces.
_BASE = ("at_ns", "source", "name", "value")


class Table(dict[str, NDArray[Any]]):
    """Columns of one length, by name, as numpy arrays; the unit is the end of the name (`_ms`, `_ns`, `_tok`).

    >>> table = Table(ttft_ms=np.array([10.0, 30.0]))
    >>> float(table["ttft_ms"].mean())
    20.0
    """

    def to_pandas(self) -> "pandas.DataFrame":
        """A pandas data frame, one row each. UsageError: pandas is not installed.

        >>> Table(n_tok=np.array([1, 2])).to_pandas()["n_tok"].tolist()  # doctest: +PANDAS
        [1, 2]
        """
        return _library("pandas").DataFrame(dict(self))

    def to_polars(self) -> "polars.DataFrame":
        """A polars data frame, one row each. UsageError: polars is not installed.

        >>> Table(n_tok=np.array([1, 2])).to_polars()["n_tok"].to_list()  # doctest: +POLARS
        [1, 2]
        """
        frame: polars.DataFrame = _library("polars").DataFrame(dict(self))
        return frame

    def to_arrow(self) -> "pyarrow.Table":
        """An Arrow table, one row each. UsageError: pyarrow is not installed.

        >>> Table(n_tok=np.array([1, 2])).to_arrow()["n_tok"].to_pylist()  # doctest: +PYARROW
        [1, 2]
        """
        return _library("pyarrow").table(dict(self))


def _library(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise UsageError(f"{name} is not installed: pip install {name}") from None


def requests_table(records: Iterable[Record]) -> Table:
    """One row a record, in the order of the plan; columns as `cadenza.Run.requests` lists them."""
    rows = sorted(records, key=lambda record: record.index)
    columns = Columns.of(rows)
    return Table(
        index=columns.index,
        phase=_texts(row.phase.value for row in rows),
        outcome=_texts(row.outcome.value for row in rows),
        status=np.array([-1 if row.status is None else row.status for row in rows], dtype=np.int64),
        finish_reason=_texts(row.finish_reason or "" for row in rows),
        detail=_texts(row.detail or "" for row in rows),
        target=np.array([row.target for row in rows], dtype=np.int64),
        worker=np.array([row.worker for row in rows], dtype=np.int64),
        intended_ns=np.array([row.intended_ns for row in rows], dtype=np.int64),
        intended_ms=columns.intended_ms,
        sent_ms=columns.sent_ms,
        connected_ms=columns.connected_ms,
        first_ms=columns.first_ms,
        last_ms=columns.last_ms,
        done_ms=columns.done_ms,
        ttft_ms=latency.ttft_ms(columns),
        user_ttft_ms=latency.user_ttft_ms(columns),
        tpot_ms=latency.tpot_ms(columns),
        latency_ms=latency.latency_ms(columns),
        user_latency_ms=latency.user_latency_ms(columns),
        dispatch_lag_ms=latency.dispatch_lag_ms(columns),
        prompt_tok=columns.prompt_tok,
        output_tok=columns.output_tok,
    )


def _texts(values: Iterable[str]) -> NDArray[np.str_]:
    return np.array(list(values), dtype=np.str_)


def readings_table(samples: Iterable[Sample]) -> Table:
    """One row a value, and a column for each label that any series has; as `cadenza.Run.telemetry` lists them."""
    rows = list(_rows(samples))
    labels = sorted({label for row in rows for label in row[3]})
    return Table(
        at_ns=np.array([row[0] for row in rows], dtype=np.int64),
        source=_texts(row[1] for row in rows),
        name=_texts(row[2] for row in rows),
        value=np.array([row[4] for row in rows], dtype=np.float64),
        **{label: _texts(row[3].get(label, "") for row in rows) for label in labels if label not in _BASE},
    )


def _rows(samples: Iterable[Sample]) -> Iterator[tuple[int, str, str, Mapping[str, str], float]]:
    """(instant in ns, source, name, labels, value) of each value."""
    for at_ns, source, _, series, values in samples:
        for one, value in zip(series, values, strict=True):
            yield at_ns, source, one.name, dict(one.labels), value
