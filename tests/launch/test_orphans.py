"""Which processes a zygote ends with its last worker: descendants of workers, and nobody else."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import psutil
import pytest

from nbaccel.launch.system import process

pytestmark = pytest.mark.skipif(not process.forks_safely(), reason="there is no zygote here")

ZYGOTE = textwrap.dedent(
    """
    import json, os, subprocess, sys
    from nbaccel.launch.system import process
    from nbaccel.launch.zygotes.zygote import Zygote

    def start(**how):
        return subprocess.Popen(["sleep", "60"], **how).pid

    process.adopt_orphans()
    zygote = Zygote.__new__(Zygote)
    worker = start(start_new_session=True)
    child_zygote = start(start_new_session=True)
    of_our_session = start()
    zygote._exit_pipes, zygote._zygotes = {worker: -1}, {child_zygote}
    # Its parent ends at once, and hands it on to us as a daemon does.
    command = ["sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $!"]
    daemon = int(subprocess.check_output(command))
    while os.getsid(daemon) == os.getsid(0) or daemon not in process.child_pids():
        pass
    ended = start(start_new_session=True)
    os.kill(ended, 9)
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)  # not reaped: its pid can't be anybody else's
    zygote._end_orphans()
    os.waitpid(daemon, 0)
    os.waitpid(ended, 0)
    # With all of them reaped their pids may be used again, and nothing remembers them.
    killed = []
    os.kill = lambda pid, number: killed.append(pid)
    zygote._end_orphans()
    print(json.dumps({"left": [worker, child_zygote, of_our_session], "again": killed}), flush=True)
    sys.stdin.read()
    for pid in (worker, child_zygote, of_our_session):
        subprocess.run(["kill", "-9", str(pid)], check=False)
        os.waitpid(pid, 0)
    """
)


def test_only_adopted_daemons_are_ended_and_no_pid_is_remembered() -> None:
    # Of another session too, and started by somebody else: another kernel's worker is like this.
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    zygote = subprocess.Popen(
        [sys.executable, "-c", ZYGOTE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert zygote.stdout is not None
        told = json.loads(zygote.stdout.readline())
        assert told["again"] == []
        for pid in (*told["left"], stranger.pid):
            assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    finally:
        zygote.communicate(timeout=30)
        stranger.kill()
        stranger.wait()
    assert zygote.returncode == 0
