"""The helper process that makes listening sockets inside of sandboxes' network namespaces.

Started by path as `python -I -S listening_child.py SOCKET UID GID PARENT`; it imports the standard library
alone. A request is the number of a process, as text; the answer is `ok` with the socket, or why not. Each
request is served by a fork of its own: one process can't enter one namespace after the other.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import sys

PORT = 3128
BACKLOG = 128
MOST_BYTES = 256
OK = b"ok"
_NS_GET_USERNS = 0xB701
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_IP_FREEBIND = 15
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> None:
    """Serves requests until the other end is closed."""
    descriptor, uid, gid, parent = (int(number) for number in arguments)
    if os.getuid() == 0 and uid != 0:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    # Set last, because a change of user takes it back.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    with socket.socket(fileno=descriptor) as channel:
        while data := channel.recv(MOST_BYTES):
            child = os.fork()
            if child == 0:
                os._exit(_answer(channel, int(data)))
            _, status = os.waitpid(child, 0)
            number = os.waitstatus_to_exitcode(status)
            if number != 0:
                channel.send(os.strerror(number).encode() if number > 0 else b"it was killed")


def _answer(channel: socket.socket, process: int) -> int:
    """Sends a socket of the process's network; the errno when that failed."""
    try:
        with _listen_in(process) as listener:
            socket.send_fds(channel, [OK], [listener.fileno()])
    except OSError as error:
        return error.errno or 5
    return 0


def _listen_in(process: int) -> socket.socket:
    network = os.open(f"/proc/{process}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    # The user namespace that owns the network gives the right to enter it; it is a child of ours.
    owner = fcntl.ioctl(network, _NS_GET_USERNS)
    _enter(owner, _CLONE_NEWUSER)
    _enter(network, _CLONE_NEWNET)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    # The loopback device of a sandbox that is still being set up has no address yet.
    listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
    listener.bind(("127.0.0.1", PORT))
    listener.listen(BACKLOG)
    return listener


def _enter(namespace: int, kind: int) -> None:
    if _libc.setns(namespace, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(sys.argv[1:])
