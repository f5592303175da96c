"""A source that takes filters by PySpark's documentation, to test whether pushdown works yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition, LessThan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.types import StructType


class Numbers(DataSource):
    """The numbers from 0 to 9."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "id long"

    def reader(self, schema: StructType) -> NumbersReader:
        del schema
        return NumbersReader()


class NumbersReader(DataSourceReader):
    """Takes `id < n` and leaves the rest."""

    def __init__(self) -> None:
        self.end = 10

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's
        for one in filters:
            if isinstance(one, LessThan) and one.attribute == ("id",):
                self.end = min(self.end, one.value)
            else:
                yield one

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        del partition
        return ((number,) for number in range(self.end))
