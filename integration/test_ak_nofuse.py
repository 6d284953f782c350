"""Where nothing can be mounted, hipofs_ak reads what hipofs export writes: the same values, and the same errors."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import oxihipo
import pytest

from harness import ROOT, data, run

# A /dev without fuse, as in a container; PATH and what Python needs of /dev stay.
HIDE = """set -e
mount -t tmpfs none /mnt
for f in null zero random urandom; do touch /mnt/$f; mount --bind /dev/$f /mnt/$f; done
mkdir /mnt/shm
mount --rbind /mnt /dev
exec "$@"
"""

READ = """
import json, sys, warnings
import awkward as ak, hipofs_ak as hf, numpy as np, oxihipo
said = []
warnings.showwarning = lambda message, category, *_: said.append(f"{category.__name__}: {message}")
warnings.simplefilter("always", hf.HipoWarning)


def same(got, want):
    assert got.type == want.type and ak.array_equal(got, want, equal_nan=True, dtype_exact=True), (got, want)


for paths in json.loads(sys.argv[1]):
    f, chain = hf.open(paths), oxihipo.open(paths)
    assert (len(f), f.keys(), f.typenames(), f.files) == (len(chain), chain.keys(), chain.typenames(), chain.files)
    assert (f.record_spans(), f.config, f.tag_names) == (chain.record_spans(), chain.config, chain.tag_names)
    np.testing.assert_array_equal(f.event_tags(), chain.event_tags())
    bank = f.keys(nonempty=True)[0]
    column = f.columns(bank)[-1]
    same(f.array(bank, column), chain.array(bank, column))
    for name in f.keys(nonempty=True):
        same(f.arrays(name), chain.arrays(name))
        same(ak.materialize(f.arrays()[name]), chain.arrays(name))
    same(f.arrays(bank, entry_start=2, entry_stop=-1), chain.arrays(bank, entry_start=2, entry_stop=len(chain) - 1))
    some, want = f.filtered(require=[bank], event_tag=[0, 1]), chain.filtered(require=[bank], event_tag=[0, 1])
    same(some.arrays(bank), want.arrays(bank))
    same(f.view(".event/1").arrays(bank), chain.arrays(bank)[1:2])
    for wrong in (".event/1000", ".files/a", ".where/px=1", ".where/tag=4294967296", ".entries/a:b"):
        try:
            print("no error:", f.view(wrong))
        except ValueError:
            pass
    same(some.view(".entries/1:").arrays(bank), want.arrays(bank)[1:])
    assert set(some.keys(nonempty=True)) == {b for b in f.keys(nonempty=True) if ak.any(ak.num(want.arrays(b)) > 0)}
    np.testing.assert_array_equal(f.filtered(record_tag=3).event_tags(), chain.filtered(record_tag=[3]).event_tags())
    np.testing.assert_array_equal(f.filtered(event_tag_any=2).event_tags(), chain.filtered(event_tag_any=2).event_tags())
    entry = int(np.flatnonzero(ak.num(chain.arrays(bank)))[-1])
    assert f.event(entry).tag == chain.event_tags()[entry]
    assert len(f.event(entry)[bank]) == ak.num(chain.arrays(bank))[entry]
    for kind in f.keys(kind="composite"):
        if kind in f:
            same(f.composite(kind), chain.composite(kind))
    f.close()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def without(program, tmp_path_factory):
    """without(code, *arguments, **environment) runs Python where nothing can be mounted."""
    if run("unshare", "-m", "true", ok=False).returncode:
        pytest.fail("unshare -m is needed, by root")
    script = tmp_path_factory.mktemp("nofuse") / "hide.sh"
    script.write_text(HIDE)

    def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"PYTHONPATH": str(ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1"} | environment
        return run("unshare", "-m", "sh", str(script), sys.executable, "-c", code, *arguments, env=env, ok=False)

    return python


def exports() -> list[Path]:
    return sorted(Path(os.environ["XDG_CACHE_HOME"], "hipofs", "export").glob("*"))


def test_everything_reads_the_same_and_says_so_once(without):
    chains = [[str(data("codecs/meta.hipo"))], [str(data("codecs/composite.hipo"))] * 2, [str(data("codecs/record_tags.hipo"))],
              [str(data("clas12_recon_proton_80MeV.hipo"))]]
    done = without(READ, json.dumps(chains))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said) == 1 and said[0].startswith("HipoWarning: no /dev/fuse")
    assert os.environ["XDG_CACHE_HOME"] in said[0]
    assert len(exports()) == len(chains)


def test_only_what_is_used_is_written_and_found_again(without, tmp_path):
    code = ("import sys, warnings; warnings.simplefilter('ignore'); import hipofs_ak as hf\n"
            "print(hf.open(sys.argv[1]).numpy('SM::part', 'pid').values.sum())")
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    first = without(code, str(data("codecs/small.hipo")), **env)
    files = {p.relative_to(tmp_path): p.stat().st_ino for p in tmp_path.rglob("*.npy")}
    assert {p.name for p in files} == {"pid.npy", "offsets.npy", "entries.npy", "event_tags.npy", "record_tags.npy"}, first.stderr
    assert without(code, str(data("codecs/small.hipo")), **env).stdout == first.stdout
    assert {p.relative_to(tmp_path): p.stat().st_ino for p in tmp_path.rglob("*.npy")} == files
    assert int(first.stdout) == oxihipo.open(str(data("codecs/small.hipo"))).numpy("SM::part", "pid").values.sum()


ERRORS = """
import os, shutil, sys, warnings
warnings.simplefilter("ignore")
import hipofs_ak as hf
for source, ask in (("corrupt_record", "f.arrays('SM::part')"), ("ragged_bank", "f.arrays('SM::event')"), ("none*", "f"),
                    ("small", "f.array('SM::par', 'pid')"), ("small", "f.numpy('SM::part', 'pidd')"), ("tiny", "hf.open([])")):
    try:
        f = hf.open(os.path.join(sys.argv[1], source + ".hipo"))
        print("no error:", eval(ask))
    except hf.HipoError as e:
        print(type(e).__name__, e)
shutil.copyfile(os.path.join(sys.argv[1], "small.hipo"), sys.argv[2])
f = hf.open(sys.argv[2])
shutil.copyfile(os.path.join(sys.argv[1], "meta.hipo"), sys.argv[2])
try:
    print("no error:", f.arrays("SM::part"))
except OSError as e:
    print(type(e).__name__, e)
print(len(hf.open(sys.argv[2])))
"""


def test_errors_are_those_of_a_mount(without, tmp_path):
    done = without(ERRORS, str(data("codecs/small.hipo").parent), str(tmp_path / "run.hipo"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for line, start in zip(lines, (
        "CorruptFileError ", "CorruptFileError ", "HipoNotFoundError ", "KeyInFileError no bank 'SM::par'",
        "KeyInFileError no column 'pidd'", "HipoNotFoundError ", "HipoIOError [Errno 116]", "24"), strict=True):
        assert line.startswith(start), lines
    assert "record 1 at byte 1172: LZ4 data is damaged" in lines[0] and "event 2: bank SM::event has 29 bytes" in lines[1]


def test_the_folder_is_kept_small(without, tmp_path):
    """What was not used for longest goes, and what is in use stays whole."""
    code = ("import os, sys, warnings; warnings.simplefilter('ignore'); import hipofs_ak as hf\n"
            "from hipofs_ak import _export\n"
            "_export.LIMIT = 0\n"
            "a = hf.open(sys.argv[1]); x = a.arrays('SM::part')\n"
            "b = hf.open(sys.argv[2]); y = b.arrays('SM::part')\n"
            "os.mkdir(f'{b.mount}/../hipofs_ak-of-the-killed'); b.array('SM::event', 'e')\n"
            "print(len(x), len(y), len(x.tolist()), len(a.array('SM::part', 'q').tolist()))")
    done = without(code, str(data("codecs/small.hipo")), str(data("codecs/meta.hipo")), XDG_CACHE_HOME=str(tmp_path))
    assert done.stdout.split() == ["24"] * 4, done.stderr
    assert len(list((tmp_path / "hipofs" / "export").iterdir())) == 1 and not list(tmp_path.rglob("hipofs_ak-*"))


def test_processes_at_once_write_it_once(without, tmp_path):
    code = ("import sys, warnings; warnings.simplefilter('ignore'); import hipofs_ak as hf\n"
            "from concurrent.futures import ThreadPoolExecutor\n"
            "f = hf.open(sys.argv[1])\n"
            "with ThreadPoolExecutor(8) as pool: sums = list(pool.map(lambda c: float(f.numpy('SM::part', c).values.sum()), ['pid', 's', 'w'] * 8))\n"
            "print(len(set(sums)))")
    script = f"for i in 1 2 3; do {sys.executable} -c \"$CODE\" {data('codecs/small.hipo')} & done; wait"
    done = without(f"import os; os.execvp('sh', ['sh', '-c', {script!r}])", CODE=code, XDG_CACHE_HOME=str(tmp_path))
    assert done.stdout.split() == ["3"] * 3, done.stderr
    assert not list(tmp_path.rglob("hipofs_ak-*")) and not list(tmp_path.rglob("*.part"))
