"""pandas: a bank as a table; a column of several values a row is several columns of the table."""
import pandas as pd

from report import BANKS, flat, report, together

for bank in BANKS:
    table, parts = flat(bank)
    frame = pd.DataFrame(table, copy=False)
    for name, names in parts.items():
        report(bank, name, together({n: frame[n].to_numpy() for n in names}, names))
