"""A channel over a loopback connection, where descriptors can't be passed.

What travels beside a message is the name of a file there (:mod:`nbaccel.launch.payload.named_files`). Both
ends have proved to each other that they know the secret (:mod:`nbaccel.launch.transport.handshake`) before
there is a channel at all, so nobody else can put bytes in front of the unpickler.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Sequence
from typing import Any

from nbaccel.launch.system.wakeup import is_readable
from nbaccel.launch.transport.channel import CHUNK, Channel, ChannelClosed, Ticket, pack_frame
from nbaccel.launch.transport.handshake import Acceptor, PeerGoneError


class TcpChannel(Channel):
    """One end of a connection. The kernel's is there before the worker has connected."""

    def __init__(self, sock: socket.socket | None, acceptor: Acceptor | None = None) -> None:
        # Until the worker has connected nothing can be sent, and reading says that it is closed.
        super().__init__(sock if sock is not None else socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        self._acceptor = acceptor
        self.is_connected = sock is not None
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def awaited(cls, acceptor: Acceptor) -> TcpChannel:
        """The kernel's end of one that will be there after :meth:`establish`."""
        return cls(None, acceptor)

    def establish(self, gone_fd: int) -> None:
        if self._acceptor is None:
            return
        acceptor, self._acceptor = self._acceptor, None
        try:
            sock = acceptor.accept(gone_fd)
        except PeerGoneError as error:
            raise ChannelClosed(str(error)) from error
        self._sock.close()
        self._sock = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_connected = True

    def send(self, message: object, tickets: Sequence[Ticket] = ()) -> None:
        frame = pack_frame(pickle.dumps((message, tuple(tickets)), protocol=pickle.HIGHEST_PROTOCOL), 0)
        with self._send_lock:
            if not self.is_connected:
                raise ChannelClosed("the other end of the channel never connected")
            try:
                self._sock.sendall(frame)
            except (ConnectionError, OSError) as error:
                raise ChannelClosed("the other end of the channel is gone") from error

    def close(self) -> None:
        self.is_connected = False
        if self._acceptor is not None:
            self._acceptor.close()
        super().close()

    def _fill(self, *, wait: bool) -> None:
        if not self.is_connected:
            raise ChannelClosed("the other end of the channel never connected")
        # The socket itself stays as it is: another thread may be sending.
        if not wait and not is_readable(self._sock.fileno()):
            raise BlockingIOError
        try:
            data = self._sock.recv(CHUNK)
        except ConnectionError as error:
            raise ChannelClosed("the other end of the channel is gone") from error
        if not data:
            raise ChannelClosed("the other end of the channel is gone")
        self._buffer += data

    def _open_body(self, body: bytes, _count: int) -> tuple[Any, list[Ticket]]:
        message, tickets = pickle.loads(body)
        return message, list(tickets)
