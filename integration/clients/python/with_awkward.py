"""awkward-array: a bank by its form.json, which a jagged array of records is made of without copying."""
import awkward as ak
import numpy as np

from report import BANKS, MOUNT, report

for bank in BANKS:
    files = {f.name: np.load(f, mmap_mode="r") for f in (MOUNT / bank).glob("[!@]*.npy")}
    form = (MOUNT / bank / "form.json").read_text()
    rows = ak.from_buffers(form, len(files["offsets.npy"]) - 1, files, buffer_key="{form_key}")
    for name in rows.fields:
        report(bank, name, ak.to_numpy(ak.flatten(rows[name], axis=1)))
    report(bank, "offsets", np.asarray(rows.layout.offsets))
