# For a repository of Spack: packages/hipofs/package.py.
from spack.package import *


class Hipofs(Package):
    """HIPO files as folders of NumPy arrays: a FUSE file system for the event files of CLAS12."""

    homepage = "https://github.com/hipofs/hipofs"
    git = "https://github.com/hipofs/hipofs.git"

    license("MIT")

    # A release adds its line: version("0.1.0", tag="v0.1.0", commit=...)
    version("main", branch="main")

    depends_on("go@1.26:", type="build")

    def setup_build_environment(self, env):
        env.set("CGO_ENABLED", "0")
        env.set("GOPATH", join_path(self.stage.path, "go"))
        env.set("GOFLAGS", "-modcacherw")

    def install(self, spec, prefix):
        which("go")("build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", prefix.bin.hipofs, "./cmd/hipofs")
        hipofs = Executable(prefix.bin.hipofs)
        hipofs("man", prefix.share.man.man1)
        for shell, folder, name in (
            ("bash", join_path(prefix.share, "bash-completion", "completions"), "hipofs"),
            ("fish", join_path(prefix.share, "fish", "vendor_completions.d"), "hipofs.fish"),
            ("zsh", join_path(prefix.share, "zsh", "site-functions"), "_hipofs"),
        ):
            mkdirp(folder)
            with open(join_path(folder, name), "w") as f:
                hipofs("completion", shell, output=f)
