"""The files of the benchmark, made once and kept in build/."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness import ROOT, SHARED, data

BUILD = ROOT / "build"
WRITER = SHARED / "bench" / "mkdst.py"


def dst(events: int, codec: str = "lz4", seed: int = 5042) -> Path:
    """A CLAS12-like DST by oxihipo's writer."""
    path = BUILD / f"dst-{events}-{codec.replace('+', '-')}-{seed}.hipo"
    if not path.exists():
        if not WRITER.exists():
            raise SystemExit(f"bench: {WRITER} is missing; it writes the files to read")
        part = path.with_suffix(".part")
        subprocess.run([sys.executable, WRITER, part, "--events", str(events), "--codec", codec, "--seed", str(seed)],
                       check=True, stdout=subprocess.DEVNULL)
        part.rename(path)
    return path


def hits(events: int) -> Path:
    """Detector hits as before reconstruction: few banks, many rows, over 10 KB an event."""
    path = BUILD / f"hits-{events}.hipo"
    if not path.exists():
        import awkward as ak
        import numpy as np
        import oxihipo
        rng = np.random.default_rng(1)
        adc = {"sector": "B", "layer": "B", "component": "S", "order": "B", "ADC": "I", "time": "F", "ped": "S"}
        tdc = {"sector": "B", "layer": "B", "component": "S", "order": "B", "TDC": "I"}
        banks = {"DC::tdc": (tdc, 20600, 12, 700), "ECAL::adc": (adc, 20700, 11, 150), "ECAL::tdc": (tdc, 20700, 12, 130),
                 "FTOF::adc": (adc, 21200, 11, 60), "FTOF::tdc": (tdc, 21200, 12, 60), "HTCC::adc": (adc, 21500, 11, 12)}
        part = path.with_suffix(".part")
        w = oxihipo.recreate(str(part), compression="lz4", overwrite=True)
        for name, (columns, group, item, _) in banks.items():
            w.new_bank(name, columns, group=group, item=item)
        for first in range(0, events, 2000):
            batch = {}
            for name, (columns, _, _, mean) in banks.items():
                counts = rng.poisson(mean, min(2000, events - first))
                n = int(counts.sum())
                make = {"B": lambda: rng.integers(0, 36, n, np.int8), "S": lambda: rng.integers(0, 1500, n, np.int16),
                        "I": lambda: rng.integers(0, 1 << 16, n, np.int32), "F": lambda: rng.normal(0, 9, n).astype("f4")}
                batch[name] = {c: ak.unflatten(make[kind](), counts) for c, kind in columns.items()}
            w.extend(batch)
        w.close()
        part.rename(path)
    return path


def copies(folder: Path, n: int) -> list[Path]:
    """n files with the real dictionary of 194 banks, each of other content: its header has another file number."""
    folder.mkdir()
    content = bytearray(data("clas12_recon_proton_80MeV.hipo").read_bytes())
    paths = [folder / f"run.{i:04}.hipo" for i in range(n)]
    for i, path in enumerate(paths):
        content[4:8] = i.to_bytes(4, "little")
        path.write_bytes(content)
    return paths


def made_up(folder: Path, files: int, templates: list[Path]) -> None:
    """A chain of files that hold nothing, in folder/data, with the indexes of the templates, in folder/index."""
    subprocess.run(["go", "test", "-count=1", "-run=^TestMakeChain$", "./materialize"], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL, env=os.environ | {
                       "HIPOFS_CHAIN": str(folder), "HIPOFS_FILES": str(files),
                       "HIPOFS_TEMPLATES": ":".join(map(str, templates))})


def warm(*paths: Path) -> None:
    """Into the kernel's page cache, for everybody."""
    subprocess.run(["cat", *paths], stdout=subprocess.DEVNULL, check=True)


def supply(size: int = 4 << 30) -> None:
    """Free memory that the machine really has. A virtual machine is lent its memory page by page, and a page that was
    not touched for long costs several times as much as others: whoever ran first would pay for both."""
    with open("/proc/meminfo") as f:
        free = next(int(line.split()[1]) * 1024 for line in f if line.startswith("MemFree:"))
    script = f"import mmap; m = mmap.mmap(-1, {min(size, free // 2)}); m[::mmap.PAGESIZE] = bytes(-(-len(m) // mmap.PAGESIZE))"
    subprocess.run([sys.executable, "-c", script], check=True)
