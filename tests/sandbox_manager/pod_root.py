"""A root for programs that looks like a pod's: a /workspace, a /tmp, and the rest of this system, read-only.

Run as `python -m tests.sandbox_manager.pod_root PROGRAM...` by root, or by a user who may make namespaces. Nothing
of this system can be changed from inside.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

USER = 1000
_SCRIPT = """set -e
new=/mnt
mount -t tmpfs -o mode=0755 tmpfs $new
for name in bin sbin lib lib32 lib64 libx32; do
  if [ -L /$name ]; then cp -P /$name $new/$name
  elif [ -d /$name ]; then mkdir $new/$name; mount --bind /$name $new/$name; fi
done
for path in /usr /etc /dev $NEEDED; do
  mkdir -p $new$path; mount --rbind $path $new$path; mount -o remount,bind,ro $new$path 2>/dev/null || true
done
mkdir -p $new/proc $new/workspace $new/tmp
mount --rbind /proc $new/proc
chmod 1777 $new/tmp
here=$PWD
if [ -n "$AS_USER" ]; then
  chown $AS_USER $new/workspace
  exec chroot --userspec=$AS_USER:$AS_USER --groups= $new env -C "$here" "$@"
fi
exec chroot $new env -C "$here" "$@"
"""


def command(program: list[str], needed: list[Path]) -> tuple[list[str], dict[str, str]]:
    """The words that run a program in such a root, and what they need in their environment."""
    root = os.geteuid() == 0
    words = [
        "unshare",
        "--mount",
        *([] if root else ["--user", "--map-root-user"]),
        "--propagation",
        "private",
    ]
    environment = {
        "NEEDED": " ".join(map(str, needed)),
        "AS_USER": str(USER) if root else "",
    }
    return [*words, "--", "/bin/sh", "-c", _SCRIPT, "sh", *program], environment


if __name__ == "__main__":
    words, environment = command(sys.argv[1:], [Path(sys.base_prefix), Path(sys.prefix), Path.cwd()])
    os.execvpe(words[0], words, {**os.environ, **environment})
