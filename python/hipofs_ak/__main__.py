"""python -m hipofs_ak: reads a small HIPO file that comes with the package, and shows how."""
from __future__ import annotations

import os

LINES = """\
import hipofs_ak as hf
f = hf.open("demo.hipo")
f
f.keys()
px, offsets, inner_len = f.numpy("REC::Particle", "px")
len(px), len(offsets) - 1
px[offsets[3]:offsets[4]].tolist()
"""
AWKWARD = """\
p = f.arrays("REC::Particle", ["pid", "px"])
p.type.show()
p[3].tolist()
f.close()
"""


def main() -> None:
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    names: dict[str, object] = {}
    try:
        for line in (LINES + AWKWARD).splitlines():
            print(">>>", line, flush=True)
            exec(compile(line, "<demo>", "single"), names)  # noqa: S102  (it prints what an expression is, as Python does)
    except ImportError as e:
        print(f"ImportError: {e}")


if __name__ == "__main__":
    main()
