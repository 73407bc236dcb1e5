"""The start of a worker that inherits nothing but its standard streams: it connects to the kernel.

Run by :mod:`nbaccel.launch.group.spawner_portable`. Connects before it loads anything large, so that the
kernel doesn't wait; until the kernel has proved itself nothing is unpickled.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from nbaccel.launch.transport import handshake


def bootstrap() -> NoReturn:
    """Read our arguments from the command line, the secret from standard input, and be a worker."""
    port, folder, name = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    secret = sys.stdin.buffer.read(handshake.SECRET_SIZE)
    try:
        sock = handshake.connect(port, secret)
    except OSError:
        os._exit(1)  # the kernel has gone meanwhile, or nobody whom we should obey is there
    from nbaccel.launch.payload import named_files
    from nbaccel.launch.transport.tcp_channel import TcpChannel
    from nbaccel.launch.worker import worker

    named_files.use_folder(folder)
    worker.main_connected(TcpChannel(sock), name)
