"""Questions that are asked again and again, of workers that can't answer."""

from __future__ import annotations

from contextlib import closing

from nbaccel.launch.group.group import WorkerGroup
from nbaccel.launch.group.member import Member
from nbaccel.launch.output.router import Router
from nbaccel.launch.transport import messages
from nbaccel.launch.transport.channel import Channel


def test_a_worker_that_does_not_answer_is_not_asked_again():
    """It would have its socket filled up, and the kernel wait for room in it, for ever."""
    ours, socket = Channel.pair()
    with closing(ours), closing(Channel.from_fd(socket.detach())) as theirs:
        group = WorkerGroup(Router("all", range(1)))
        member = Member(0, None, ours, {})
        group.members.append(member)
        for _ in range(5000):
            group.ask_progress([member])
            group.ask_whereabouts()
        questions = [message for message, _ in theirs.poll()[0]]
        assert questions == [messages.AskProgress(), messages.AskWhereabouts()]

        member.hear(messages.Here(None), None)
        group.ask_whereabouts()
        assert [message for message, _ in theirs.poll()[0]] == [messages.AskWhereabouts()]
        group.members.clear()
        group.close()
