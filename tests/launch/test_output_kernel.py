"""Output of workers as a front end gets it, in a real kernel."""

import re

import pytest

IMPORT = "from nbaccel import notebook_launcher\n"


def launch(kernel, body, *, n=2, options="", before="", after="", **how):
    """Run a function with this body on n CPU ranks, in one cell."""
    indented = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    call = f"notebook_launcher(work, num_processes={n}, cpu=True{options})"
    return kernel.run(f"{IMPORT}def work():\n{indented}\n{before}\n{call}{after}\n", **how)


def worker_lines(text):
    return [line for line in text.splitlines() if not line.startswith("nbaccel: ")]


def test_B042_lines_of_two_ranks_come_whole_and_labelled(kernel):
    result = launch(kernel, "for _ in range(50): print('a' * 200)")
    lines = worker_lines(result.stdout)
    assert len(lines) == 100
    assert sorted(set(lines)) == ["[rank 0] " + "a" * 200, "[rank 1] " + "a" * 200]


def test_B045_notebook_bars_become_text_without_a_complaint(fresh_kernel):
    body = """
from tqdm.auto import tqdm
from tqdm.notebook import tqdm as notebook_tqdm
for _ in tqdm(range(20), desc="auto"): pass
for _ in notebook_tqdm(range(20), desc="notebook"): pass
"""
    result = launch(fresh_kernel, body)
    for name in ("auto", "notebook"):
        assert re.search(rf"^\[rank 0\] {name}: 100%.*20/20", result.stderr, re.MULTILINE), result.stderr
    assert not result.displays
    log = fresh_kernel.transcript.read_text()
    assert "Comm" not in log
    assert "fork" not in log


def test_B045_a_bar_class_of_the_kernel_s_own_is_text_in_the_workers(kernel):
    code = f"""{IMPORT}
from tqdm.auto import tqdm
def work():
    for _ in tqdm(range(20)): pass
notebook_launcher(work, num_processes=2, cpu=True)
"""
    result = kernel.run(code)
    assert "[rank 0] 100%" in result.stderr
    assert "20/20" in result.stderr
    assert not result.displays


@pytest.mark.parametrize("flush", ["", ", flush=True"], ids=["B050", "B049"])
def test_B049_B050_what_is_printed_shows_while_the_work_goes_on(kernel, flush, tmp_path):
    cell = kernel.submit(
        f"""{IMPORT}
def work():
    import os, time
    print("here"{flush})
    deadline = time.monotonic() + 20
    while not os.path.exists({str(tmp_path / "go")!r}) and time.monotonic() < deadline:
        time.sleep(0.02)
notebook_launcher(work, num_processes=2, cpu=True)
"""
    )
    cell.wait_for_text("[rank 0] here", timeout=15)
    cell.wait_for_text("[rank 1] here", timeout=5)
    assert not cell.done
    (tmp_path / "go").touch()
    cell.wait(may_fail=False)


def test_B049_the_first_line_takes_less_than_two_seconds(kernel):
    launch(kernel, "pass")  # the server process is there
    result = launch(kernel, "print('here')")
    first = next(o for o in result.outputs if "here" in o.text)
    assert first.sent - result.submitted < 2


def test_B051_what_was_printed_before_a_failure_stands_before_the_error(kernel):
    body = """
import sys
print("before")
print("warned", file=sys.stderr)
sys.stdout.write("unfinished")
raise ValueError("no")
"""
    result = launch(kernel, body, n=1, may_fail=True)
    kinds = [o.kind for o in result.outputs]
    assert kinds.index("error") == len(kinds) - 1
    assert worker_lines(result.stdout) == ["before", "unfinished"]
    assert "warned" in result.stderr
    assert result.error.ename == "ValueError"


@pytest.mark.parametrize("n", [1, 2])
def test_B052_a_thousand_updates_give_few_lines_in_a_batch_run(kernel, n):
    body = """
from tqdm import tqdm
for _ in tqdm(range(1000), mininterval=0, miniters=1): pass
import sys
for i in range(1000):
    sys.stdout.write(f"\\rstep {i + 1}")
    sys.stdout.flush()
print()
"""
    result = launch(kernel, body, n=n)
    for text, last in ((result.stderr, "1000/1000"), (result.stdout, "step 1000")):
        states = [state for state in re.split(r"[\r\n]", text) if state]
        assert len(states) < 50
        assert last in states[-1] or last in states[-2]


def test_B052_in_front_of_somebody_bars_are_live(kernel):
    result = launch(
        kernel,
        "from tqdm import tqdm\nimport time\nfor _ in tqdm(range(20)): time.sleep(0.02)",
        before="get_ipython().kernel._allow_stdin = True  # what a front end says with each cell",
    )
    assert len(re.findall(r"\r\[rank 0\] +\d+%", result.stderr)) >= 2
    # The others' last state only, as a line, which is written over the live bar if that still moves.
    assert re.findall(r"\[rank 1\] +(\d+)%", result.stderr) == ["100"]


def test_both_streams_of_a_rank_keep_their_order(kernel):
    body = """
import sys
for i in range(8):
    print("line", i, file=sys.stderr if i % 2 else sys.stdout)
"""
    result = launch(kernel, body, n=1)
    text = "".join(o.text for o in result.outputs if "nbaccel" not in o.text)
    assert text.split("\n")[:-1] == [f"line {i}" for i in range(8)]


def test_text_of_c_code_and_child_processes_stands_where_it_was_written(kernel):
    body = """
import ctypes, os, subprocess
print("python")
ctypes.CDLL(None).puts(b"c library")
os.write(1, b"descriptor\\n")
os.system("echo shell")
subprocess.run(["echo", "child"])
ctypes.CDLL(None).printf(b"no end")
"""
    result = launch(kernel, body, n=1)
    assert worker_lines(result.stdout) == ["python", "c library", "descriptor", "shell", "child", "no end"]


def test_logging_and_warnings_reach_the_cell(kernel):
    body = """
import logging, warnings
logging.basicConfig(level="INFO", format="%(levelname)s %(message)s")
logging.info("logged")
warnings.warn("warned")
"""
    result = launch(kernel, body)
    for rank in (0, 1):
        assert f"[rank {rank}] INFO logged\n" in result.stderr
        assert re.search(rf"\[rank {rank}\] .*UserWarning: warned", result.stderr)


def test_rich_shows_its_last_state_as_text(kernel):
    pytest.importorskip("rich")
    result = launch(kernel, "from rich.progress import track\nfor _ in track(range(50), 'work'): pass")
    for rank in (0, 1):
        assert re.search(rf"\[rank {rank}\] work .*100%", result.stdout)
    assert len(worker_lines(result.stdout)) < 6
    assert not result.displays


def test_a_question_of_the_main_rank_appears_although_its_line_has_no_end(kernel, tmp_path):
    cell = kernel.submit(
        f"""{IMPORT}
def work():
    import os, time
    if os.environ["RANK"] == "0":
        print("Name? ", end="")
    deadline = time.monotonic() + 20
    while not os.path.exists({str(tmp_path / "go")!r}) and time.monotonic() < deadline:
        time.sleep(0.02)
    if os.environ["RANK"] == "0":
        print("Ada")
notebook_launcher(work, num_processes=2, cpu=True)
"""
    )
    cell.wait_for_text("[rank 0] Name? ", timeout=15)
    (tmp_path / "go").touch()
    result = cell.wait(may_fail=False)
    assert worker_lines(result.stdout) == ["[rank 0] Name? Ada"]


def test_a_hundred_thousand_lines_of_two_ranks_arrive_in_few_messages(kernel):
    body = """
import os
for i in range(100_000): print(os.environ["RANK"], i)
"""
    result = launch(kernel, body)
    lines = worker_lines(result.stdout)
    for rank in (0, 1):
        label = f"[rank {rank}] "
        own = [line.removeprefix(label) for line in lines if line.startswith(label)]
        assert own == [f"{rank} {i}" for i in range(100_000)]
    assert len(result.outputs) < 25 * result.seconds + 25


def test_capturing_a_cell_s_output_captures_the_workers_too(kernel):
    body = "print('printed')\ndisplay({'a': 1})"
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    kernel.run(f"{IMPORT}def work():\n{lines}")
    result = kernel.run("%%capture kept\nnotebook_launcher(work, num_processes=1, cpu=True)")
    assert result.stdout == ""
    assert not result.displays
    shown = kernel.run("print(kept.stdout, [o.data['text/plain'] for o in kept.outputs])")
    assert "printed\n" in shown.stdout
    assert "{'a': 1}" in shown.stdout


def test_a_replaced_stream_gets_the_workers_text(kernel):
    result = kernel.run(
        f"""{IMPORT}
import contextlib, io
def work(): print("inside")
target = io.StringIO()
with contextlib.redirect_stdout(target):
    notebook_launcher(work, num_processes=2, cpu=True)
print(sorted(target.getvalue().splitlines()))
"""
    )
    assert "['[rank 0] inside', '[rank 1] inside', 'nbaccel: 2 processes on cpu']" in result.stdout


def test_a_stream_that_breaks_costs_the_output_and_not_the_work(kernel):
    result = kernel.run(
        f"""{IMPORT}
import contextlib, io
class Full(io.StringIO):
    def write(self, text):
        if "nbaccel" not in text:
            raise OSError(28, "No space left on device")
        return super().write(text)
def work():
    for _ in range(3):
        print("lost", flush=True)
    return 42
with contextlib.redirect_stdout(Full()):
    value = notebook_launcher(work, num_processes=2, cpu=True)
print(value)
"""
    )
    assert result.stdout == "42\n"
    assert result.stderr.count("No space left on device") == 1


def test_logs_on_request(kernel, tmp_path):
    result = launch(
        kernel,
        "import os\nprint('out of', os.environ['RANK'])",
        options=f", output='main', env={{'NBACCEL_LOG_DIR': {str(tmp_path)!r}}}",
    )
    assert worker_lines(result.stdout) == ["out of 0"]
    assert (tmp_path / "rank-1.log").read_text().endswith("\nout of 1\n")
