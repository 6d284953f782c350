"""ROOT: a bank as an RDataFrame over the arrays; a column of several values a row is several of its columns."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import ROOT
from report import BANKS, flat, report, together

for bank in BANKS:
    table, parts = flat(bank)
    short = {name: f"c{i}" for i, name in enumerate(table)}  # names as C++ has them
    frame = ROOT.RDF.FromNumpy({short[name]: values for name, values in table.items()})
    rows = frame.AsNumpy()
    for name, names in parts.items():
        report(bank, name, together({n: rows[short[n]] for n in names}, names))
