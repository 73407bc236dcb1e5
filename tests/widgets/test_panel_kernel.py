"""The live panel as a user sees it: in the cells of a real kernel, in an executed notebook, in a script."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import nbformat
import pytest

from tests.kernel import ROOT

TRAIN = """
import time
import nbaccel
from nbaccel import Accelerator, notebook_launcher
def train(batches=10, epochs=1, pause=0.0, fails=False, logs=True, says=()):
    import torch
    from torch.utils.data import DataLoader
    accelerator = Accelerator(cpu=True)
    world = accelerator.num_processes
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(torch.ones(2 * batches * world, 1), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for text in says:
        print(text)
    for epoch in range(epochs):
        for batch in loader:
            accelerator.backward(model(batch).sum())
            optimizer.step()
            step += 1
            if logs:
                accelerator.log({"loss": 100.0 - step, "<b>rank</b>": accelerator.process_index}, step=step)
            if fails and accelerator.process_index == 1 and step == batches - 2:
                raise KeyError("<lost>")
            time.sleep(pause)
    return step
"""

PANEL = "nbp-head"


@pytest.fixture
def notebook(kernel):
    kernel.run(TRAIN)
    yield kernel
    kernel.run("nbaccel.config.set_session_values({})")


def panels(result):
    """What the panels of a cell showed, in order."""
    return [output for output in result.outputs if PANEL in output.data.get("text/html", "")]


def last(result):
    """The one panel of a cell, as it is in the end."""
    found = panels(result)
    assert [output.kind for output in found].count("display_data") == 1, result.outputs
    assert found[0].kind == "display_data"
    return found[-1]


def launch(notebook, arguments="", options="", **how):
    call = f"notebook_launcher(train, ({arguments}), num_processes=2, cpu=True{options})"
    return notebook.run(call, **how)


def test_a_run_that_logs_has_a_panel_with_the_right_numbers(notebook):
    result = launch(notebook, "10, 3,")
    panel = last(result)
    head, numbers, values, columns, *ranks = panel.text.splitlines()
    assert re.fullmatch(r"2 processes on cpu: finished after [\d.]+ s", head)
    assert numbers.startswith("epoch 3, batch 10/10, step 30")
    assert values == "loss 70, <b>rank</b> 0"
    assert columns.split()[:5] == ["rank", "does", "epoch", "batch", "step"]
    assert [row.split()[:6] for row in ranks] == [
        [str(n), "has", "finished", "3", "10/10", "30"] for n in (0, 1)
    ]
    page = panel.data["text/html"]
    assert page.count("<svg") == 2
    assert "&lt;b&gt;rank&lt;/b&gt;" in page
    assert "<b>rank" not in page
    assert "70 to 99, step 30" in page
    # The value of the call is still the cell's.
    assert result.displays[-1].text == "30"


def test_lines_are_as_they_would_be_without_it(notebook):
    def lines(result):
        text = "".join(output.text for output in result.outputs if output.kind == "stream")
        return sorted(text.splitlines())

    says = "10, 1, 0.0, False, True, ('one', 'two'),"
    with_it, without = launch(notebook, says), launch(notebook, says, ", progress=False")
    assert panels(with_it)
    assert not panels(without)
    assert lines(with_it) == lines(without)


def test_after_an_error_the_last_picture_says_which_rank_and_where(notebook):
    result = launch(notebook, "10, 1, 0.0, True,", may_fail=True)
    assert result.error.ename == "KeyError"
    panel = last(result)
    line = TRAIN.strip().splitlines().index('                raise KeyError("<lost>")')
    assert re.search(
        rf"rank 1 raised KeyError: '<lost>' at Cell In\[\d+\], line {line + 1} after", panel.text
    )
    assert "raised KeyError: &#x27;&lt;lost&gt;&#x27; at Cell In[" in panel.data["text/html"]
    assert re.search(r"^0 .*(stopped|lost its connection)", panel.text, re.MULTILINE)
    assert "running" not in panel.text


def test_after_an_interrupt_the_last_picture_stays(notebook):
    cell = notebook.submit("notebook_launcher(train, (1000, 1, 0.05), num_processes=2, cpu=True)")
    shown = cell.wait_for_output(lambda output: PANEL in output.data.get("text/html", ""), 30)
    assert "running for" in shown.text
    assert "/1000" in shown.text
    notebook.interrupt()
    result = cell.wait(20)
    assert result.error.ename == "KeyboardInterrupt"
    panel = last(result)
    assert re.match(r"2 processes on cpu: interrupted after [\d.]+ s\n", panel.text)
    assert panel.text.count("interrupted (trains)") == 2
    assert "left" not in panel.text


def test_a_short_quiet_run_shows_nothing(notebook):
    assert not panels(launch(notebook, "10, 1, 0.0, False, False,"))
    assert not panels(notebook.run("notebook_launcher(print, (1,), num_processes=2, cpu=True)"))


def test_a_run_that_only_trains_has_a_panel_after_a_while(notebook):
    notebook.run(
        "from nbaccel.launch.progress import progress\nbefore, progress.SHOW_AFTER = progress.SHOW_AFTER, 0.5"
    )
    try:
        result = launch(notebook, "40, 1, 0.05, False, False,")
    finally:
        notebook.run("progress.SHOW_AFTER = before")
    panel = last(result)
    assert "batch 40/40" in panel.text
    assert "<svg" not in panel.data["text/html"]


@pytest.mark.parametrize(
    "turn_off",
    [
        "nbaccel.config.set_session_values({'progress': False})",
        "import os; os.environ['NBACCEL_PROGRESS'] = 'off'",
    ],
    ids=["by the session", "by the environment"],
)
def test_it_can_be_turned_off_and_an_argument_wins(notebook, turn_off):
    notebook.run(turn_off)
    try:
        assert not panels(launch(notebook, "10,"))
        assert panels(launch(notebook, "10,", ", progress=True"))
    finally:
        notebook.run("import os; os.environ.pop('NBACCEL_PROGRESS', None)")


def test_asked_for_it_stands_first_and_whatever_output_says(notebook):
    result = launch(notebook, "10, 1, 0.0, False, False, ('one',),", ", progress=True, output='none'")
    assert last(result).text.startswith("2 processes on cpu: finished")
    assert "one" not in result.stdout
    result = launch(notebook, "10, 1, 0.0, False, False, ('one',),", ", progress=True")
    kinds = [output.kind if not output.name else output.text.splitlines()[0] for output in result.outputs]
    assert kinds[:2] == ["nbaccel: 2 processes on cpu", "display_data"]
    assert "[rank 0] one" in result.stdout


def test_a_wrong_word_is_an_error_before_anything_starts(notebook):
    result = launch(notebook, options=", progress='often'", may_fail=True)
    assert result.error.evalue == "progress='often' is not known; choose one of auto, on, off"


def test_launches_in_threads_have_a_panel_each(notebook):
    result = notebook.run(
        "import threading\n"
        "threads = [threading.Thread(target=notebook_launcher, args=(train, (10 + n,)), "
        "kwargs={'num_processes': 1, 'cpu': True}) for n in range(2)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()"
    )
    texts = [output.text for output in panels(result)]
    assert [output.kind for output in panels(result)].count("display_data") == 2
    assert any("finished" in text and "batch 10/10" in text for text in texts)
    assert any("finished" in text and "batch 11/11" in text for text in texts)


def test_what_collects_the_output_of_a_cell_gets_the_last_picture_only(notebook):
    notebook.run(
        "%%capture caught\nnotebook_launcher(train, (20, 1, 0.1), num_processes=1, cpu=True, progress=True)"
    )
    result = notebook.run(
        "print(len([1 for each in caught.outputs if 'nbp-head' in each.data.get('text/html', '')]))"
    )
    assert result.stdout == "1\n"


def test_cells_on_workers_have_a_panel_of_their_own(notebook):
    notebook.run("%load_ext nbaccel")
    try:
        first = notebook.run("%%accelerate --cpu -n 2\ntrain(10)")
        assert "batch 10/10, step 10" in last(first).text
        second = notebook.run("%%accelerate\ntrain(5, 2)")
        assert "epoch 2, batch 5/5, step 10" in last(second).text
        assert "loss 90, " in last(second).text
        failed = notebook.run("%%accelerate\ntrain(10, 1, 0.0, True)", may_fail=True)
        assert re.search(r"rank 1 raised KeyError: '<lost>' at Cell In\[\d+\], line", last(failed).text)
        assert not panels(notebook.run("%%accelerate --no-progress\ntrain(10)"))
        assert last(notebook.run("%%accelerate --progress\nanswer = 42")).text.startswith(
            "2 processes on cpu: fin"
        )
        for quiet in ("%%accelerate\nanswer", "%accelerate pull answer", "nbaccel.session().status()"):
            assert not panels(notebook.run(quiet))
        ran = notebook.run("nbaccel.session().run(train, 10)")
        assert "batch 10/10" in last(ran).text
        assert not panels(notebook.run("nbaccel.session().run(train, 10, progress=False)"))
        wrong = notebook.run("%%accelerate --progress --no-progress\n1", may_fail=True)
        assert "contradict" in wrong.error.evalue
    finally:
        notebook.run("%accelerate stop")


@pytest.fixture
def executed(tmp_path):
    """A notebook to write, and the path of its executed copy, which is removed."""
    path = tmp_path / f"panel-{os.getpid()}.ipynb"
    yield path, ROOT / "build" / "notebooks" / path.name
    for file in (ROOT / "build" / "notebooks").glob(f"{path.stem}*"):
        file.unlink()


def test_an_executed_notebook_holds_the_last_picture_as_plain_html(executed):
    path, copy = executed
    cells = [TRAIN, "notebook_launcher(train, (30, 1, 0.05), num_processes=2, cpu=True)"]
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells]), path)
    run([str(ROOT / "notebooks" / "run.py"), str(path)])
    outputs = nbformat.read(copy, 4).cells[1].outputs
    (panel,) = [each for each in outputs if PANEL in each.get("data", {}).get("text/html", "")]
    assert "finished after" in panel.data["text/html"]
    assert "<polyline" in panel.data["text/html"]
    assert "batch 30/30" in panel.data["text/plain"]
    assert set(panel.data) == {"text/html", "text/plain"}


def run(command):
    """Run a script with this interpreter."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *command]
    return subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=100, check=True
    )


@pytest.mark.parametrize(("asked", "lines"), [("None", 0), ("True", 1)])
def test_in_a_script_a_short_run_says_nothing_unless_asked(tmp_path, asked, lines):
    script = tmp_path / "run.py"
    script.write_text(
        f"{TRAIN}\nnotebook_launcher(train, (10,), num_processes=2, cpu=True, progress={asked})\n"
    )
    done = run([str(script)])
    told = [line for line in done.stdout.splitlines() if "finished after" in line]
    assert len(told) == lines
    for line in told:
        assert re.match(
            r"nbaccel: finished after [\d.]+ s; epoch 1, batch 10/10, step 10.*; loss 90, <b>", line
        )
    assert done.stderr == ""
