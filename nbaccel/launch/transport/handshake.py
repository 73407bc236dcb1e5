"""How a worker's connection comes about where no socket can be inherited: over the loopback interface.

::

    kernel                                            worker
    listens on 127.0.0.1, any port
    ── starts it; the secret goes through its stdin ──▶
    ◀──────────────────────────────────────── connects
    ── nonce ─────────────────────────────────────────▶
    ◀───────────────────── nonce, proof of the secret
    ── proof of the secret ───────────────────────────▶
    listens no more

Whoever else connects knows no secret and is let go; a silent one holds nobody up. Until both have
proved themselves nothing but bytes of fixed number is read, and nothing is unpickled. Must import
nothing but the standard library: a worker connects before it loads anything.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import selectors
import socket
import time

SECRET_SIZE = 32
"""Bytes of the secret, of a nonce and of a proof."""

PATIENCE = 60.0
"""Seconds in which a worker that was started must have connected."""

_MAX_CANDIDATES = 64
"""Connections that haven't proved anything yet: when there are more, the oldest is let go."""


class PeerGoneError(ConnectionError):
    """The process that was to connect has ended."""


class Acceptor:
    """Listens for one worker."""

    def __init__(self) -> None:
        self.secret = secrets.token_bytes(SECRET_SIZE)
        """What the worker is told over a way that nobody else can read."""
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # Windows: nobody else may bind the same port
                self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
            self._listener.bind(("127.0.0.1", 0))
            self._listener.listen(_MAX_CANDIDATES)
            self._listener.setblocking(False)
        except BaseException:
            self._listener.close()
            raise
        self.port: int = self._listener.getsockname()[1]
        """Where the worker is to connect."""

    def accept(self, gone_fd: int, patience: float = PATIENCE) -> socket.socket:
        """Wait for the worker, and stop listening.

        Args:
            gone_fd: becomes readable when the worker has ended.
            patience: seconds to wait at most.

        Raises:
            PeerGoneError: it has ended.
            TimeoutError: it has not connected.
        """
        deadline = time.monotonic() + patience
        candidates: dict[socket.socket, _Candidate] = {}
        with selectors.DefaultSelector() as selector, contextlib.closing(self):
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(gone_fd, selectors.EVENT_READ)
            try:
                while True:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError(f"a worker that was started did not connect within {patience:g} s")
                    # A worker that has connected and ended has been here: look at connections first.
                    ready = {key.fileobj for key, _ in selector.select(left)}
                    for sock in [sock for sock in candidates if sock in ready]:
                        outcome = candidates[sock].read()
                        if outcome is not None:
                            selector.unregister(sock)
                            candidate = candidates.pop(sock)
                            if outcome:
                                return candidate.confirmed()
                            sock.close()
                    if self._listener in ready:
                        self._admit(candidates, selector)
                    elif gone_fd in ready:
                        raise PeerGoneError("a worker ended before it had connected")
            finally:
                for sock in candidates:
                    sock.close()

    def _admit(self, candidates: dict[socket.socket, _Candidate], selector: selectors.BaseSelector) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # it has gone again
        if len(candidates) >= _MAX_CANDIDATES:
            oldest = next(iter(candidates))
            selector.unregister(oldest)
            del candidates[oldest]
            oldest.close()
        sock.setblocking(False)
        candidates[sock] = _Candidate(sock, self.secret)
        selector.register(sock, selectors.EVENT_READ)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


class _Candidate:
    """A connection whose other end has not proved anything yet."""

    def __init__(self, sock: socket.socket, secret: bytes) -> None:
        self._sock = sock
        self._secret = secret
        self._nonce = secrets.token_bytes(SECRET_SIZE)
        self._heard = b""
        self._send(self._nonce)

    def read(self) -> bool | None:
        """Whether it has proved itself; None: it has not said enough yet."""
        try:
            data = self._sock.recv(2 * SECRET_SIZE - len(self._heard))
        except BlockingIOError:
            return None
        except OSError:
            return False
        self._heard += data
        if not data:
            return False
        if len(self._heard) < 2 * SECRET_SIZE:
            return None
        nonce, proof = self._heard[:SECRET_SIZE], self._heard[SECRET_SIZE:]
        return hmac.compare_digest(proof, _proof(self._secret, b"worker", self._nonce, nonce))

    def confirmed(self) -> socket.socket:
        """Prove ourselves too, and hand over the connection."""
        nonce = self._heard[:SECRET_SIZE]
        self._send(_proof(self._secret, b"kernel", nonce, self._nonce))
        self._sock.setblocking(True)
        return self._sock

    def _send(self, data: bytes) -> None:
        try:
            self._sock.send(data)  # so few bytes always fit
        except OSError:
            return  # it has gone again, which the next read tells


def connect(port: int, secret: bytes, patience: float = PATIENCE) -> socket.socket:
    """In the worker: connect to the kernel, and make sure that it is the one.

    Args:
        port: where it listens on the loopback interface.
        secret: what it told this process.
        patience: seconds to wait at most for its answers.

    Raises:
        OSError: there is nobody, or not the kernel.
    """
    sock = socket.create_connection(("127.0.0.1", port), timeout=patience)
    try:
        theirs = _read_exactly(sock, SECRET_SIZE)
        ours = secrets.token_bytes(SECRET_SIZE)
        sock.sendall(ours + _proof(secret, b"worker", theirs, ours))
        proof = _read_exactly(sock, SECRET_SIZE)
        _check(hmac.compare_digest(proof, _proof(secret, b"kernel", ours, theirs)), port)
    except BaseException:
        sock.close()
        raise
    sock.settimeout(None)
    return sock


def _check(is_right: bool, port: int) -> None:
    if not is_right:
        raise ConnectionRefusedError(f"port {port} belongs to a process that didn't start this one")


def _proof(secret: bytes, role: bytes, asked: bytes, own: bytes) -> bytes:
    """Only who knows the secret can make it; with the role in it one side's doesn't do as the other's."""
    return hmac.digest(secret, role + asked + own, "sha256")


def _read_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("the other end closed the connection before it had proved itself")
        data += piece
    return data
