"""CLAS12 data as arrays: HIPO files, or a mount of hipofs, for those who know uproot.

>>> import hipofs_ak as hf
>>> with hf.open(source) as f:
...     print(f.arrays("MC::Particle", ["px", "py"]).type)
101 * var * {px: float32, py: float32}
"""
from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ._bank import Accessed, Column, NumpyColumn, Schema
from ._errors import (
    CorruptFileError, HipoError, HipoIOError, HipoNotFoundError, HipoValueError, HipoWarning, KeyInFileError,
)
from ._file import Bank, Event, File, Occupancy, open
from ._index import FileRange, Index, index
from ._iterate import Report
from ._open import arrays, composite, event_tags, iterate, iterate_rdataframe, numpy, rdataframe, skim
from ._out import SkimSummary
from ._physics import PDG_MASS_GEV, PDG_NAME, group_by_index, link, pdg_mass, pdg_name, to_vector

try:
    __version__ = version("hipofs")
except PackageNotFoundError:  # in a clone
    __version__ = "unknown"

# As oxihipo calls them.
Chain = File
OxihipoError = HipoError

__all__ = [
    "PDG_MASS_GEV", "PDG_NAME", "Accessed", "Bank", "Chain", "Column", "CorruptFileError", "Event", "File", "FileRange",
    "HipoError", "HipoIOError", "HipoNotFoundError", "HipoValueError", "HipoWarning", "Index", "KeyInFileError",
    "NumpyColumn", "Occupancy", "OxihipoError", "Report", "Schema", "SkimSummary", "arrays", "composite", "event_tags",
    "group_by_index", "index", "iterate", "iterate_rdataframe", "link", "numpy", "open", "pdg_mass", "pdg_name",
    "rdataframe", "skim", "to_vector", "__version__",
]
