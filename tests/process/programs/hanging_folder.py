"""hanging_folder.py FOLDER PROGRAM ARGUMENTS...: runs the program where each look into the folder hangs.

The folder is a FUSE file system that nobody serves, in a mount namespace of the program's own. It ends with the program.
"""

import ctypes
import os
import sys

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x00020000, 0x4000, 0x40000


def main() -> None:
    folder, program = sys.argv[1:3]
    libc = ctypes.CDLL(None, use_errno=True)

    def called(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    try:
        line = os.open("/dev/fuse", os.O_RDWR)
        os.set_inheritable(line, True)
        called(libc.unshare(CLONE_NEWNS))
        called(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
        options = f"fd={line},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        called(libc.mount(b"hanging", folder.encode(), b"fuse", 0, options.encode()))
    except OSError as error:
        print(f"SKIPPED: this machine mounts no file system in user space: {error}", flush=True)
        return
    os.execv(program, sys.argv[2:])


main()
