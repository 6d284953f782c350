"""deb and rpm: installed in a root of their own, used by mount(8), fstab and systemd's units, and removed without a trace."""
from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from harness import GOLDEN_LZ4, ROOT, data, golden, run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can install packages")

PX, = (r for r in golden()[GOLDEN_LZ4] if (r.bank, r.column) == ("REC::Particle", "px"))
PX_BYTES = PX.rows * 4

# In namespaces of its own, a root that shows this machine's and keeps what is written apart, with a /dev/fuse that is open to
# all as distributions ship it. All processes and mounts of it end with it.
ENTER = r"""
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 none "$1"
mkdir "$1"/upper "$1"/work "$1"/root
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" none "$1"/root
mount -t tmpfs -o mode=755 none "$1"/root/dev
mount -t proc none "$1"/root/proc
mount -t tmpfs -o mode=755 none "$1"/root/run
for node in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "$1/root/dev/${node%:*}" c 1 "${node#*:}"; done
mknod -m 666 "$1"/root/dev/fuse c 10 229
ln -s /proc/self/fd "$1"/root/dev/fd
mkdir "$1"/root/upper "$1"/root/lower
mount --bind "$1"/upper "$1"/root/upper
mount --bind / "$1"/root/lower
cp "$2" "$1"/root/package
cp "$3" "$1"/root/run.hipo
chmod 644 "$1"/root/run.hipo
exec chroot "$1"/root env -i HOME=/home PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 sh -eu -c "$4"
"""

TRY = r"""
as_ana() { setpriv --reuid=ana --regid=ana --init-groups env HOME=/home/ana sh -euc "$1"; }
px() { tail -c %(bytes)d "$1/REC::Particle/px.npy" | sha256sum | cut -d ' ' -f 1; }
written() { # in this root: files, what hides files, and folders that are new
	cd /upper; find . -not -type d; find . -type d | while read -r d; do [ -d "/lower/$d" ] || echo "$d"; done; cd /
}

useradd -m ana
mkdir /home/ana/run
chown ana: /home/ana/run
%(prepare)s
written | sort >/before
%(install)s
echo "== installed"

# what an ordinary user may, who has neither $PATH nor $HOME there
echo '/run.hipo /home/ana/run fuse.hipofs user,noauto,memory=64M,banks=REC::* 0 0' >>/etc/fstab
as_ana 'mount /home/ana/run; grep " /home/ana/run fuse.hipofs " /proc/mounts; ls /home/ana/run'
echo "px $(as_ana "tail -c %(bytes)d '/home/ana/run/REC::Particle/px.npy'" | sha256sum)"
as_ana 'umount /home/ana/run; ls /home/ana/.cache/hipofs'
! grep hipofs /proc/mounts

# all of fstab, twice, and by the type
sed -i 's/user,noauto/allow_other/' /etc/fstab
mount -a -t fuse.hipofs; mount -a -t fuse.hipofs
[ "$(grep -c fuse.hipofs /proc/mounts)" = 1 ]
echo "px $(px /home/ana/run)"
umount /home/ana/run
mkdir /other
mount -t fuse.hipofs -o ro /run.hipo /other
df --output=source /other
umount /other
status=0; mount -t fuse.hipofs /absent.hipo /other || status=$?
echo "status $status"
rmdir /other
echo "== fstab"

# what the units do, line by line
line() { sed -n "s|^$2=-\?||p" "$1" | sed "s|%%i|run5042|g; s|%%t|$3|g; s|%%E|$4|g"; }
unit() {
	systemd-analyze "$1" verify "$2"
	line "$2" ExecStart "$3" "$4" >start; line "$2" ExecStopPost "$3" "$4" >stop
}
echo /run.hipo >/etc/hipofs/run5042.list
mkdir -p /run/hipofs/run5042
cp /usr/lib/systemd/system/hipofs@.service /hipofs@run5042.service
unit --system /hipofs@run5042.service /run /etc
sh -e start
as_ana 'ls /run/hipofs/run5042'
sh -e stop
! grep hipofs /proc/mounts
rm -r /run/hipofs /etc/hipofs/run5042.list
mkdir -p /home/ana/.config/hipofs /run/user/ana/hipofs/run5042
echo /run.hipo >/home/ana/.config/hipofs/run5042.list
chown -R ana: /home/ana /run/user/ana
cp /usr/lib/systemd/user/hipofs@.service /hipofs@run5042.service
XDG_RUNTIME_DIR=/run/user/ana unit --user /hipofs@run5042.service /run/user/ana /home/ana/.config
chmod 644 start stop
as_ana 'sh -e /start; ls /run/user/ana/hipofs/run5042; sh -e /stop'
! grep hipofs /proc/mounts
echo "== units"

bash -euc 'shopt -u expand_aliases; . /usr/share/bash-completion/completions/hipofs; complete -p hipofs'
grep -c '^#compdef hipofs' %(zsh)s
grep -c '^complete -c hipofs' /usr/share/fish/vendor_completions.d/hipofs.fish
for page in /usr/share/man/man1/hipofs.1.gz /usr/share/man/man8/mount.fuse.hipofs.8.gz; do mandoc "$page" | head -1; done
grep -c '^==== ' /usr/share/doc/hipofs/copyright
echo "== read"

rm -r /home/ana/.cache /home/ana/.config /home/.cache /hipofs@run5042.service /start /stop
find /root/.cache/hipofs -newer /before -name "*.hipofs-index" -delete
%(remove)s
written | sort >/after
echo "== left"
diff /before /after | grep '^[<>]' | grep -v -E '%(own)s' || true
echo "== end"
"""


class Kind(NamedTuple):
    """How packages of a kind are handled, and where they keep what they know."""
    suffix: str
    command: str
    prepare: str
    install: str
    remove: str
    zsh: str
    own: str


KINDS = [
    Kind("deb", "dpkg", "", "dpkg --install --force-depends /package >/dev/null", "dpkg --purge hipofs >/dev/null",
         "/usr/share/zsh/vendor-completions/_hipofs", r" \./(var/(lib/dpkg|cache/man|log)/.*|etc/fstab|after|before)$"),
    # rpm's data base is empty here: it knows neither what hipofs depends on, nor whose the empty folders are that it removes.
    Kind("rpm", "rpm", "rpm --initdb; rmdir /usr/share/fish/vendor_completions.d || true", "rpm --install --nodeps /package", "rpm --erase hipofs",
         "/usr/share/zsh/site-functions/_hipofs", r" \./(var/(lib/rpm|cache/man)/.*|etc/fstab|after|before)$"),
]


@pytest.fixture(scope="module")
def packages(hipofs: Path) -> Path:
    """The folder with the deb and the rpm of the command for this machine; those of make package, if they are named."""
    if made := os.environ.get("HIPOFS_PACKAGES"):
        return ROOT / made
    arch = run("go", "env", "GOHOSTARCH").stdout.strip()
    run(ROOT / "scripts" / "package.sh", "--try", hipofs, f"linux/{arch}", timeout=600)
    return ROOT / "build" / "packages"


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.suffix)
def test_installed_used_and_removed_without_a_trace(kind, packages, tmp_path):
    if not shutil.which(kind.command):
        pytest.skip(f"no {kind.command} here")
    here = {"x86_64": ("x86_64", "amd64"), "aarch64": ("aarch64", "arm64")}[os.uname().machine]
    package, = (p for p in packages.glob(f"*.{kind.suffix}") if any(word in p.name for word in here))
    script = TRY % ({"bytes": PX_BYTES, "px": PX.content} | kind._asdict())
    done = run("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh", tmp_path, package, data(GOLDEN_LZ4), script, ok=False)
    said = done.stdout
    print(said, done.stderr)
    assert done.returncode == 0 and said.endswith("== left\n== end\n")
    assert said.count(f"px {PX.content}") == 2
    assert "status 32" in said
