"""polars: a bank as a table; a column of several values a row is one of type Array."""
import polars as pl

from report import BANKS, columns, report

for bank in BANKS:
    frame = pl.DataFrame(columns(bank))
    for name in frame.columns:
        report(bank, name, frame[name].to_numpy())
