"""stuck_storage.py FOLDER SOURCE OPENS PROGRAM ARGUMENTS...: runs the program where FOLDER/program, a copy of SOURCE, is on a storage that answers
that many opens of it, and no later one. Not even SIGKILL ends a process that waits for such an answer.

The folder is a FUSE file system in a mount namespace of this process's own, and is served by it: all that hangs ends with it. The program dies with it, too.
"""

import ctypes
import os
import signal
import struct
import sys
import threading

CLONE_NEWNS, MS_REC, MS_PRIVATE, PR_SET_PDEATHSIG = 0x00020000, 0x4000, 0x40000, 1
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT, ACCESS, INTERRUPT, BATCH_FORGET = 1, 2, 3, 14, 15, 18, 25, 26, 34, 36, 42
EINTR, ENOENT, ENOSYS = 4, 2, 38
FOLDER, PROGRAM = 1, 2  # numbers of the inodes
VALID = 3600  # seconds

libc = ctypes.CDLL(None, use_errno=True)


def called(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mounted(folder: str) -> int:
    line = os.open("/dev/fuse", os.O_RDWR)
    called(libc.unshare(CLONE_NEWNS))
    called(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    options = f"fd={line},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    called(libc.mount(b"stuck", folder.encode(), b"fuse", 0, options.encode()))
    return line


def attributes(inode: int, size: int) -> bytes:
    mode, links = (0o40755, 2) if inode == FOLDER else (0o100755, 1)
    return struct.pack("<6Q10I", inode, size, (size + 511) // 512, 0, 0, 0, 0, 0, 0, mode, links, 0, 0, 0, 4096, 0)


def serve(line: int, data: bytes, opens: int) -> None:
    while True:
        try:
            request = os.read(line, 1 << 20)
        except OSError as error:
            if error.errno in (EINTR, ENOENT):
                continue
            return
        operation, number, inode = struct.unpack("<IQQ", request[4:24])
        body, error = b"", 0
        if operation == INIT:
            body = struct.pack("<4I2H2I2H7I", 7, 31, 0, 0, 12, 12, 131072, 1, 32, 0, 0, 0, 0, 0, 0, 0, 0)[:64]
        elif operation == LOOKUP and request[40:-1] == b"program":
            body = struct.pack("<4Q2I", PROGRAM, 0, VALID, VALID, 0, 0) + attributes(PROGRAM, len(data))
        elif operation == LOOKUP:
            error = ENOENT
        elif operation == GETATTR:
            body = struct.pack("<Q2I", VALID, 0, 0) + attributes(inode, len(data))
        elif operation == OPEN:
            opens -= 1
            if opens < 0:
                print("an open of the program waits for good", flush=True)
                continue
            body = struct.pack("<Q2I", 1, 0, 0)
        elif operation == READ:
            offset, size = struct.unpack("<QI", request[48:60])
            body = data[offset : offset + size]
        elif operation in (FORGET, BATCH_FORGET, INTERRUPT):
            continue
        elif operation not in (RELEASE, FLUSH, ACCESS):
            error = ENOSYS
        try:
            os.write(line, struct.pack("<IiQ", 16 + len(body), -error, number) + body)
        except OSError:
            pass  # who asked is gone


def main() -> None:
    folder, source, opens, program = sys.argv[1:5]
    called(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
    with open(source, "rb") as file:
        data = file.read()
    try:
        line = mounted(folder)
    except OSError as error:
        print(f"SKIPPED: this machine mounts no file system in user space: {error}", flush=True)
        return
    child = os.fork()
    if child == 0:
        called(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
        os.execv(program, sys.argv[4:])

    def tell() -> None:
        _, status = os.waitpid(child, 0)
        print(f"the program has ended: {os.waitstatus_to_exitcode(status)}", flush=True)

    # Not a handler of SIGCHLD: where that interrupts a print, its own print fails and ends the file system.
    threading.Thread(target=tell, daemon=True).start()
    serve(line, data, int(opens))


main()
