"""Puts the command hipofs into the wheel: HIPOFS_BINARY, or built for the platform of GOOS and GOARCH, or for this one."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).resolve().parent.parent

# The binary is static, so that any Linux will do, whatever its C library; a Mac must be one that Go runs on.
TAGS = {
    ("linux", "amd64"): "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
    ("linux", "arm64"): "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
    ("darwin", "amd64"): "macosx_12_0_x86_64",
    ("darwin", "arm64"): "macosx_12_0_arm64",
}


def build(binary: Path, env: dict[str, str]) -> None:
    """Build the command as scripts/package.sh does."""
    subprocess.run(["go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid=", "-o", binary,
                    "./cmd/hipofs"], cwd=ROOT, env=env, check=True)


class Licenses(MetadataHookInterface):
    """The licences of what is in the command, which are files only here and now."""

    def update(self, metadata: dict[str, Any]) -> None:
        if not (ROOT / "go.mod").exists():
            sys.exit("hipofs is built from a clone of its repository, by: pip install ./python")
        with open(Path(self.root, "THIRD-PARTY-LICENSES"), "w") as out:
            subprocess.run([ROOT / "scripts" / "licenses.sh"], stdout=out, check=True)
        metadata["license-files"] = ["LICENSE", "THIRD-PARTY-LICENSES"]


class Command(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            sys.exit("hipofs has wheels alone: its source is more than this folder")
        env = os.environ | {"CGO_ENABLED": "0"}
        goos, goarch = subprocess.run(["go", "env", "GOOS", "GOARCH"], cwd=ROOT, env=env, stdout=subprocess.PIPE,
                                      text=True, check=True).stdout.split()
        if (goos, goarch) not in TAGS:
            sys.exit(f"hipofs: there are no wheels for {goos}/{goarch}, only for {', '.join('/'.join(p) for p in TAGS)}")
        given = os.environ.get("HIPOFS_BINARY")
        binary = Path(given or ROOT / "build" / "release" / f"{goos}-{goarch}" / "hipofs")
        if given is None:
            build(binary, env)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{TAGS[goos, goarch]}"
        build_data["shared_scripts"] = {str(binary): "hipofs"}
