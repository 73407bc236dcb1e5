"""Framed messages, and file descriptors beside them, over a private Unix socket.

A frame is a header (length of the body, number of descriptors) and a pickled body. Both ends are
processes that nbaccel started itself and the socket has no name, so nobody else can speak on it;
nothing that listens ever reaches this code.

Messages are the small frozen dataclasses of :mod:`nbaccel.launch.transport.messages`. Anything large travels
in a memory file whose descriptor goes along with the message. Where there are no such sockets,
:mod:`nbaccel.launch.transport.tcp_channel` has the same methods.
"""

from __future__ import annotations

import array
import os
import pickle
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

_HEADER = struct.Struct("!QI")
_MAX_FDS = 64

CHUNK = 1 << 16
"""Bytes a read."""

Ticket = int | str
"""What goes along with a message: a descriptor, or the name of a file where none can be passed."""


class ChannelClosed(EOFError):
    """The other end is gone."""


class Channel:
    """One end of a socket pair. ``send`` may be called from several threads, reading from one."""

    is_connected = True
    """Whether something can be sent at once; else after :meth:`establish`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._send_lock = threading.Lock()
        self._buffer = bytearray()
        self._fds: deque[int] = deque()

    def establish(self, gone_fd: int) -> None:
        """Wait until the other end is there.

        Args:
            gone_fd: becomes readable when the process at the other end has ended.

        Raises:
            ChannelClosed: it has ended.
            TimeoutError: it doesn't come.
        """

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """This process's end, and the bare socket to hand to the other process."""
        ours, theirs = socket.socketpair()
        return cls(ours), theirs

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """Take over an inherited descriptor."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._sock.fileno()

    def send(self, message: object, tickets: Sequence[Ticket] = ()) -> None:
        """Send one message; descriptors are duplicated into the receiver, the sender keeps its own.

        Raises:
            ChannelClosed: the receiver is gone.
        """
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        frame = memoryview(pack_frame(body, len(tickets)))
        fds = array.array("i", [ticket for ticket in tickets if isinstance(ticket, int)])
        assert len(fds) == len(tickets)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if fds else []
        with self._send_lock:
            try:
                sent = self._sock.sendmsg([frame], ancillary)
                if sent < len(frame):
                    self._sock.sendall(frame[sent:])
            except (BrokenPipeError, ConnectionResetError) as error:
                raise ChannelClosed("the other end of the channel is gone") from error

    def recv(self, timeout: float | None = None) -> tuple[Any, list[Ticket]]:
        """Wait for the next message and its descriptors, which the caller now owns.

        Raises:
            ChannelClosed: the sender is gone and nothing whole is left to read.
            TimeoutError: no whole message within ``timeout`` seconds of silence.
        """
        self._sock.settimeout(timeout)
        try:
            while True:
                message = self._take()
                if message is not None:
                    return message
                self._fill(wait=True)
        finally:
            self._sock.settimeout(None)

    def poll(self) -> tuple[list[tuple[Any, list[Ticket]]], bool]:
        """Whole messages that can be had without waiting, and whether the channel is still open."""
        is_open = True
        try:
            while True:
                self._fill(wait=False)
        except BlockingIOError:
            is_open = True  # nothing more for now
        except ChannelClosed:
            is_open = False
        messages = []
        while (message := self._take()) is not None:
            messages.append(message)
        return messages, is_open

    def close(self) -> None:
        """Close this end and every descriptor that arrived and was not taken."""
        self._sock.close()
        while self._fds:
            os.close(self._fds.popleft())

    def _fill(self, *, wait: bool) -> None:
        fds = array.array("i")
        try:
            data, ancillary, _, _ = self._sock.recvmsg(
                CHUNK, socket.CMSG_LEN(_MAX_FDS * fds.itemsize), 0 if wait else socket.MSG_DONTWAIT
            )
        except ConnectionResetError as error:
            raise ChannelClosed("the other end of the channel is gone") from error
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        for fd in fds:
            os.set_inheritable(fd, False)
            self._fds.append(fd)
        if not data:
            raise ChannelClosed("the other end of the channel is gone")
        self._buffer += data

    def _take(self) -> tuple[Any, list[Ticket]] | None:
        if len(self._buffer) < _HEADER.size:
            return None
        length, count = _HEADER.unpack_from(self._buffer)
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        return self._open_body(body, count)

    def _open_body(self, body: bytes, count: int) -> tuple[Any, list[Ticket]]:
        fds: list[Ticket] = [self._fds.popleft() for _ in range(count)]
        return pickle.loads(body), fds


def pack_frame(body: bytes, count: int) -> bytes:
    """A frame of a body that ``count`` descriptors go along with."""
    return _HEADER.pack(len(body), count) + body
