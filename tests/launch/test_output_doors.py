"""Output of workers outside a notebook's front end: scripts, pipes, terminals, batch runs."""

import errno
import json
import os
import pty
import re
import select
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BARS = """
import os, sys, time
from nbaccel import notebook_launcher

def work():
    display({"a": 1})
    print("printed")
    for i in range(1000):
        sys.stderr.write(f"\\rstep {i + 1}")
        sys.stderr.flush()
        if i % 100 == 0:
            time.sleep(0.06)
    sys.stderr.write("\\n")

notebook_launcher(work, num_processes=2, cpu=True)
"""


def environment():
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def write(tmp_path, code):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(code))
    return path


def states(text):
    return [state for state in re.split(r"[\r\n]+", text) if "step" in state]


def run_in_terminal(command, tmp_path, timeout=60):
    """All that a command shows in a terminal of its own."""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.chdir(tmp_path)
            os.execve(command[0], command, {**environment(), "TERM": "xterm", "IPYTHONDIR": str(tmp_path)})
        finally:
            os._exit(127)
    shown = b""
    deadline = time.monotonic() + timeout
    try:
        while select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
            try:
                data = os.read(terminal, 1 << 16)
            except OSError as error:
                if error.errno != errno.EIO:  # how Linux says that the other side is closed
                    raise
                break
            if not data:
                break
            shown += data
        else:
            pytest.fail(f"not over after {timeout} s; it has shown {shown[-2000:]!r}")
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, shown.decode()
    return shown.decode().replace("\r\n", "\n")


def test_B052_a_script_in_a_pipe(tmp_path):
    script = write(tmp_path, BARS)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=True,
    )
    lines = done.stdout.splitlines()
    for rank in (0, 1):
        at = lines.index(f"[rank {rank}] displays:")
        assert lines[at + 1] == "{'a': 1}"
        assert f"[rank {rank}] printed" in lines[at + 2 :]
        assert f"[rank {rank}] step 1000" in done.stderr
    assert len(states(done.stderr)) < 50
    assert "\r" not in done.stderr


def test_a_script_in_a_terminal_has_live_bars(tmp_path):
    shown = run_in_terminal([sys.executable, str(write(tmp_path, BARS))], tmp_path)
    assert len(re.findall(r"\r\[rank 0\] step \d+", shown)) > 3
    assert re.findall(r"\[rank 1\] step \d+", shown) == ["[rank 1] step 1000"], "its bar isn't live"
    assert "[rank 1] step 1000\n" in shown
    assert "{'a': 1}\n" in shown


def test_ipython_in_a_terminal(tmp_path):
    shown = run_in_terminal(
        [sys.executable, "-m", "IPython", "--no-banner", str(write(tmp_path, BARS))], tmp_path
    )
    assert "[rank 1] printed\n" in shown
    assert shown.count("{'a': 1}\n") == 2
    assert len(re.findall(r"\r\[rank 0\] step \d+", shown)) > 3


def test_a_reader_that_goes_away_ends_nothing(tmp_path):
    """As in ``python script.py | head -1``."""
    script = write(
        tmp_path,
        f"""
        import sys, time
        from nbaccel import notebook_launcher
        def work():
            for i in range(200_000):
                print("line", i)
            return 42
        value = notebook_launcher(work, num_processes=2, cpu=True)
        open({str(tmp_path / "value")!r}, "w").write(str(value))
        import os; os._exit(0)  # the interpreter itself would complain of the pipe at its end
        """,
    )
    child = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    child.stdout.readline()
    child.stdout.close()
    told = child.stderr.read()
    child.stderr.close()
    assert child.wait(60) == 0
    assert (tmp_path / "value").read_text() == "42"
    assert told.count("BrokenPipeError") == 1


EXECUTE = """
import json, sys
import nbclient, nbformat
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(open(sys.argv[1]).read())])
nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
print(json.dumps(notebook.cells[0].outputs))
"""


def test_B052_a_notebook_that_is_executed_as_a_batch(tmp_path):
    pytest.importorskip("nbclient")
    env = {**environment(), "IPYTHONDIR": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path)}
    # In a process of its own: it leaves an event loop open.
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(write(tmp_path, BARS))],
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
        timeout=100,
        check=True,
    )
    outputs = json.loads(done.stdout)
    text = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    displays = [output["data"] for output in outputs if output["output_type"] == "display_data"]
    assert [data["text/plain"] for data in displays] == ["{'a': 1}"] * 2
    assert len(states(text)) < 50
    assert "[rank 0] step 1000" in text
    assert "[rank 1] step 1000" in text
