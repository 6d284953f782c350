"""Cuts and aliases: expressions of columns, read by a list of what they may contain, and never run as Python. Not here:
what is done with the result.

An expression has names of columns, numbers, arithmetic, comparisons, `&`, `|`, `^`, `~`, brackets to pick of an array,
and calls of the functions below, which look at arrays and nothing else.
"""
from __future__ import annotations

import ast
import difflib
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._bank import Columns, column_array, counts_to_offsets, take
from ._errors import HipoError, HipoValueError
from ._need import need

LONGEST = 10_000  # characters
DEEPEST = 100  # brackets within brackets
LARGEST = 1 << 63  # of whole numbers that are worked out before any array is there

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.Invert: operator.invert, ast.UAdd: operator.pos, ast.USub: operator.neg,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}

_OF_NUMPY = frozenset("""
abs absolute add sqrt cbrt square exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan arctan2 sinh cosh tanh
arcsinh arccosh arctanh hypot deg2rad rad2deg degrees radians floor ceil rint round trunc sign fabs fmod maximum minimum
fmax fmin power mod remainder isnan isinf isfinite logical_and logical_or logical_xor logical_not where clip pi e inf nan
int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 bool_
""".split())

_OF_AWKWARD = frozenset("""
all any argmax argmin argsort count count_nonzero drop_none fill_none firsts is_none local_index max mean min moment num
pad_none prod ptp ravel flatten singletons softmax sort std sum values_astype var where zeros_like ones_like full_like
nan_to_num isclose broadcast_arrays mask
""".split())

_TYPES = {"bool": bool, "int": int, "float": float}


def names(expression: str) -> set[str]:
    """The names of columns, and of other things, that an expression mentions."""
    return {n.id for n in ast.walk(_parse(expression)) if isinstance(n, ast.Name)}


def _parse(expression: str) -> ast.expr:
    if len(expression) > LONGEST:
        raise HipoValueError(f"an expression of {len(expression)} characters; {LONGEST} is the most")
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as e:
        raise HipoValueError(f"{expression!r} is no expression: {e}") from None


def evaluate(expression: str, columns: Mapping[str, Any], aliases: Mapping[str, str] | None = None, where: str = "") -> Any:
    """The value of an expression. columns has an array for each name that it may use, aliases expressions for more names.

    Raises HipoValueError for what may not be in an expression, and where it cannot be worked out.
    """
    return _Evaluation(expression, columns, aliases or {}, where).value(_parse(expression), 0)


class _Evaluation:
    def __init__(self, expression: str, columns: Mapping[str, Any], aliases: Mapping[str, str], where: str,
                 within: tuple[str, ...] = ()):
        self._expression, self._columns, self._aliases, self._where = expression, columns, aliases, where
        self._within = within  # the aliases that led here

    def refuse(self, what: str) -> HipoValueError:
        of = f" on {self._where}" if self._where else ""
        return HipoValueError(f"could not evaluate {self._expression!r}{of}: {what}")

    def value(self, node: ast.AST, depth: int) -> Any:
        if depth > DEEPEST:
            raise self.refuse(f"more than {DEEPEST} levels of brackets and operators")
        deeper = depth + 1
        try:
            if isinstance(node, ast.Constant):
                if node.value is None or isinstance(node.value, (bool, int, float)):
                    return self.small(node.value)
            elif isinstance(node, ast.Name):
                return self.name(node.id)
            elif isinstance(node, ast.BinOp):
                return self.binary(node, deeper)
            elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
                return _OPERATORS[type(node.op)](self.value(node.operand, deeper))
            elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
                left, right = self.value(node.left, deeper), self.value(node.comparators[0], deeper)
                return _OPERATORS[type(node.ops[0])](left, right)
            elif isinstance(node, ast.Call):
                return self.call(node, deeper)
            elif isinstance(node, ast.Subscript):
                return self.value(node.value, deeper)[self.index(node.slice, deeper)]
            elif isinstance(node, ast.List):
                return [self.value(e, deeper) for e in node.elts]
            elif isinstance(node, ast.Attribute):
                return self.attribute(node, deeper)
        except HipoError:
            raise
        except Exception as e:
            raise self.refuse(f"{type(e).__name__}: {e}") from e
        raise self.refuse(_why_not(node))

    def small(self, value: Any) -> Any:
        if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
            raise self.refuse("a whole number of more than 64 bits")
        return value

    def name(self, name: str) -> Any:
        if name in self._aliases and name not in self._within:  # an alias may be called as a column that is in it
            inner = _Evaluation(self._aliases[name], self._columns, self._aliases, self._where, (*self._within, name))
            return inner.value(_parse(self._aliases[name]), len(self._within))
        if name in self._columns:
            return self._columns[name]
        known = sorted({*self._columns, *self._aliases})
        near = difflib.get_close_matches(name, known, 3)
        hint = f"the nearest are {', '.join(near)}" if near else f"there are {', '.join(known) or 'none'}"
        raise self.refuse(f"no column {name!r}; {hint}")

    def binary(self, node: ast.BinOp, depth: int) -> Any:
        left, right = self.value(node.left, depth), self.value(node.right, depth)
        if isinstance(node.op, (ast.Pow, ast.LShift)) and isinstance(left, int) and isinstance(right, int) and right > 64:
            raise self.refuse("a whole number of more than 64 bits")
        if type(node.op) not in _OPERATORS:
            raise self.refuse(_why_not(node.op))
        return self.small(_OPERATORS[type(node.op)](left, right))

    def index(self, node: ast.AST, depth: int) -> Any:
        if isinstance(node, ast.Slice):
            return slice(*(None if part is None else self.value(part, depth) for part in (node.lower, node.upper, node.step)))
        if isinstance(node, ast.Tuple):
            return tuple(self.index(e, depth) for e in node.elts)
        if isinstance(node, ast.Constant) and node.value is Ellipsis:
            return Ellipsis
        return self.value(node, depth)

    def function(self, node: ast.AST) -> Any:
        """What of ak, np and Python an expression may use; None for what it may not."""
        if isinstance(node, ast.Name) and node.id not in self._columns and node.id not in self._aliases:
            return abs if node.id == "abs" else None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "ak" and node.attr in _OF_AWKWARD:
                return getattr(need("awkward"), node.attr)
            if node.value.id in ("np", "numpy") and node.attr in _OF_NUMPY:
                return getattr(np, node.attr)
        return None

    def attribute(self, node: ast.Attribute, depth: int) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id in ("ak", "np", "numpy"):
            found = self.function(node)
            if found is None:
                raise self.refuse(f"{node.value.id}.{node.attr} is not among the functions of an expression")
            return found
        raise self.refuse(f"a dot (.{node.attr}) is for functions of ak and np alone")

    def call(self, node: ast.Call, depth: int) -> Any:
        function = self.function(node.func)
        if not callable(function):
            raise self.refuse(f"{ast.unparse(node.func)} is not among the functions of an expression: abs, ak.…, np.…")
        arguments = [self.argument(a, depth) for a in node.args]
        keywords = {k.arg: self.argument(k.value, depth) for k in node.keywords if k.arg is not None}
        if len(keywords) != len(node.keywords):
            raise self.refuse("** is not in the language of expressions")
        return function(*arguments, **keywords)

    def argument(self, node: ast.AST, depth: int) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):  # as in ak.values_astype(x, "int64")
            return node.value
        if isinstance(node, ast.Name) and node.id in _TYPES and node.id not in self._columns:
            return _TYPES[node.id]
        return self.value(node, depth)


def _why_not(node: ast.AST) -> str:
    """Why something is not in the language of expressions, and what is."""
    if isinstance(node, ast.BoolOp) or isinstance(node, ast.UnaryOp):
        return "and, or, not are for single values; for columns there are &, |, ~, with brackets around comparisons"
    if isinstance(node, ast.Compare):
        return "one comparison at a time; write (a < b) & (b < c)"
    return f"{type(node).__name__} is not in the language of expressions"


# ---------------------------------------------------------------- cuts

def apply(bank: Columns, cut: str | None, aliases: Mapping[str, str], keep: list[str] | None) -> Columns:
    """The bank with its aliases made, cut, and with those columns alone that are to be kept, in that order.

    A cut with a value for each row keeps rows; one with a value for each entry keeps whole entries.
    """
    if cut is None and keep is None:
        return bank
    arrays = {name: column_array(bank.offsets, values, inner) for name, values, inner in bank.columns}
    columns = {name: (name, values, inner) for name, values, inner in bank.columns}
    out = [columns[name] if name not in aliases else _made(name, bank, arrays, aliases)
           for name in (columns if keep is None else keep)]
    bank = Columns(bank.bank, bank.offsets, out)
    if cut is None:
        return bank
    rows, counts = _mask(evaluate(cut, arrays, aliases, bank.bank), bank)
    return Columns(bank.bank, counts_to_offsets(counts), [(name, take(values, inner, rows), inner) for name, values, inner in out])


def _made(name: str, bank: Columns, arrays: Mapping[str, Any], aliases: Mapping[str, str]) -> tuple[str, NDArray[Any], int]:
    """An alias as a column."""
    ak = need("awkward")
    wrong = HipoValueError(f"alias {name!r} on {bank.bank} has no value for each row: {aliases[name]!r}")
    try:
        made = ak.broadcast_arrays(evaluate(name, arrays, aliases, bank.bank), column_array(bank.offsets, np.zeros(bank.offsets[-1]), 1))[0]
        values = ak.to_numpy(ak.flatten(made, axis=1), allow_missing=False)
    except HipoError:
        raise
    except Exception:
        raise wrong from None
    if len(values) != bank.offsets[-1] or values.ndim > 2 or values.dtype.hasobject:
        raise wrong
    return name, values.reshape(-1), values.shape[1] if values.ndim == 2 else 1


def _mask(value: Any, bank: Columns) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which rows a cut keeps, and how many of each entry that it keeps."""
    ak = need("awkward")
    counts = np.diff(bank.offsets)
    if getattr(value, "ndim", 0) == 0 or len(value) != len(counts):
        raise HipoValueError(f"the cut on {bank.bank} has no value for each of its {len(counts)} entries")
    try:
        flat = ak.to_numpy(value if value.ndim == 1 else ak.flatten(value, axis=1), allow_missing=False)
    except ValueError:
        raise HipoValueError(f"the cut on {bank.bank} has missing values; ak.fill_none(…, False) says what they are") from None
    if flat.dtype != bool:
        raise HipoValueError(f"the cut on {bank.bank} must evaluate to booleans, got {flat.dtype}")
    if value.ndim == 1:
        return np.repeat(flat, counts), counts[flat]
    if flat.shape != (int(bank.offsets[-1]),):
        raise HipoValueError(f"the cut on {bank.bank} has {flat.shape} values for {bank.offsets[-1]} rows")
    return flat, np.asarray(ak.sum(value, axis=1), np.int64)
