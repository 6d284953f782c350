"""Packages that hipofs can do without until somebody asks for what needs them. Not here: anything else."""
from __future__ import annotations

from importlib import import_module
from typing import Any

# What pyproject.toml offers as an extra, by the module that it brings.
EXTRAS = {
    "awkward": "awkward",
    "dask_awkward": "dask",
    "pandas": "pandas",
    "particle": "particle",
    "polars": "polars",
    "pyarrow": "arrow",
    "pyarrow.parquet": "arrow",
    "ROOT": "root",
    "vector": "vector",
}


def need(module: str) -> Any:
    """The module, imported now; where it is not installed, an ImportError that says how to install it.

    >>> from hipofs_ak._need import need
    >>> need("awkward").__name__
    'awkward'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as e:
        package = module.partition(".")[0]
        if e.name is None or e.name.partition(".")[0] != package:
            raise  # it is installed, and lacks something itself
        raise ImportError(f"{package} is not installed: pip install 'hipofs[{EXTRAS[module]}]'", name=package) from e
