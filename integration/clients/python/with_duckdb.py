"""DuckDB: a bank as a table of SQL; a column of several values a row is several columns of the table."""
import duckdb
import pyarrow as pa

from report import BANKS, flat, report, together

for bank in BANKS:
    table, parts = flat(bank)
    rows = pa.table(table)  # as Arrow, NaN is a number; as NumPy, DuckDB takes it for NULL
    found = duckdb.sql("SELECT * FROM rows").to_arrow_table()
    for name, names in parts.items():
        report(bank, name, together({n: found[n].to_numpy() for n in names}, names))
