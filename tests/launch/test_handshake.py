"""Who may speak on a worker's connection over the loopback interface: the worker, nobody else."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from pathlib import Path

import pytest

from nbaccel.launch.system.wakeup import Wakeup
from nbaccel.launch.transport import handshake
from nbaccel.launch.transport.channel import ChannelClosed
from nbaccel.launch.transport.handshake import Acceptor, PeerGoneError
from nbaccel.launch.transport.tcp_channel import TcpChannel


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def alive():
    """Stands for a worker that runs: it doesn't become readable."""
    wakeup = Wakeup()
    yield wakeup
    wakeup.close()


def _stranger(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def _accept_while(acceptor, alive, act):
    """What ``accept`` gives while ``act`` runs beside it."""
    thread = threading.Thread(target=act)
    thread.start()
    try:
        return acceptor.accept(alive.fileno(), patience=20)
    finally:
        thread.join()


def test_B182_strangers_are_let_go_and_the_worker_gets_through(alive, tmp_path):
    acceptor = Acceptor()
    port, marker = acceptor.port, tmp_path / "executed"
    body = pickle.dumps(_Bomb(marker))
    strangers = [_stranger(port) for _ in range(3)]
    strangers[1].sendall(len(body).to_bytes(8, "big") + bytes(4) + body + bytes(256))
    strangers[2].sendall(bytes(2 * handshake.SECRET_SIZE))
    # The first one says nothing at all.
    ours = []
    sock = _accept_while(
        acceptor, alive, lambda: ours.append(handshake.connect(port, acceptor.secret, patience=20))
    )
    kernel, worker = TcpChannel(sock), TcpChannel(ours[0])
    try:
        worker.send("from the worker", ("a name",))
        assert kernel.recv(10) == ("from the worker", ["a name"])
        kernel.send("x" * 300_000)
        assert len(worker.recv(10)[0]) == 300_000
        for stranger in strangers:
            stranger.settimeout(10)
            said = b""
            try:
                while piece := stranger.recv(1024):
                    said += piece
            except ConnectionResetError:
                continue  # what it had sent was thrown away unread
            assert len(said) <= handshake.SECRET_SIZE  # a nonce, no proof
        assert not marker.exists()
        with pytest.raises(ConnectionRefusedError):
            _stranger(port)
    finally:
        for closable in (*strangers, kernel, worker):
            closable.close()


def test_B182_a_wrong_secret_is_no_way_in(alive):
    acceptor = Acceptor()
    refusals = []

    def intrude():
        with pytest.raises(OSError) as caught:
            handshake.connect(acceptor.port, os.urandom(handshake.SECRET_SIZE), patience=10)
        refusals.append(caught.value)

    thread = threading.Thread(target=intrude)
    thread.start()
    with pytest.raises(TimeoutError, match="did not connect within 1 s"):
        acceptor.accept(alive.fileno(), patience=1)
    thread.join()
    assert refusals


def test_B182_a_worker_obeys_nobody_who_does_not_know_the_secret():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def impersonate():
            sock, _ = server.accept()
            with sock:
                sock.sendall(bytes(handshake.SECRET_SIZE))
                answer = sock.recv(2 * handshake.SECRET_SIZE)
                sock.sendall(answer[handshake.SECRET_SIZE :])  # its own proof, sent back

        thread = threading.Thread(target=impersonate)
        thread.start()
        with pytest.raises(
            ConnectionRefusedError, match=f"port {port} belongs to a process that didn't start"
        ):
            handshake.connect(port, bytes(range(handshake.SECRET_SIZE)), patience=10)
        thread.join()


def test_it_listens_on_the_loopback_interface_only():
    acceptor = Acceptor()
    try:
        assert acceptor._listener.getsockname()[0] == "127.0.0.1"
    finally:
        acceptor.close()


def test_more_strangers_than_fit_do_not_keep_the_worker_out(alive, monkeypatch):
    monkeypatch.setattr(handshake, "_MAX_CANDIDATES", 3)
    acceptor = Acceptor()
    strangers = []
    ours = []

    def crowd():
        strangers.extend(_stranger(acceptor.port) for _ in range(6))
        ours.append(handshake.connect(acceptor.port, acceptor.secret, patience=20))

    with _accept_while(acceptor, alive, crowd) as sock:
        sock.sendall(b"!")
        assert ours[0].recv(1) == b"!"
    for closable in (*strangers, *ours):
        closable.close()


def test_a_worker_that_ends_before_it_connects_is_not_waited_for(alive):
    acceptor = Acceptor()
    alive.wake()
    with pytest.raises(PeerGoneError):
        acceptor.accept(alive.fileno(), patience=30)
    channel = TcpChannel.awaited(Acceptor())
    with pytest.raises(ChannelClosed):
        channel.establish(alive.fileno())
    with pytest.raises(ChannelClosed):
        channel.send("anything")
    assert channel.poll() == ([], False)
    channel.close()
