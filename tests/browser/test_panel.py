"""The live panel in a JupyterLab window: while it runs, after the end, and in the saved notebook."""

from __future__ import annotations

from tests.browser.window import DARK, LIGHT

TRAIN = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from nbaccel import Accelerator, notebook_launcher

def train(epochs):
    import os, time
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    loader = DataLoader(TensorDataset(torch.ones(80, 1)), batch_size=2)
    model, loader = accelerator.prepare(model, loader)
    step = 0
    for epoch in range(epochs):
        for batch, in loader:
            step += 1
            accelerator.log({"loss": 1 / step, "<i>rate</i>": 0.1 * step}, step=step)
            while step == 30 and not os.path.exists("on"):
                time.sleep(0.02)
    print("trained")

notebook_launcher(train, (2,), num_processes=2)
"""


def test_the_panel_lives_while_it_trains_and_its_last_picture_stays(open_notebook):
    notebook = open_notebook(TRAIN, theme=DARK)
    panel = notebook.outputs(0, ".nbp")
    notebook.start(0)
    notebook.wait_for_text(0, "step 30")
    assert notebook.prompt(0) == "[*]:"
    assert panel.count() == 1
    assert "running" in panel.inner_text()
    assert "2/2" in panel.inner_text() or "epoch 2" in panel.inner_text()
    assert panel.locator("svg").count() == 2
    notebook.window.screenshot("panel-running-dark")

    (notebook.path.parent / "on").touch()
    notebook.wait(0)
    assert panel.count() == 1, "one panel, which changed in place"
    end = panel.inner_text()
    assert "finished after" in end
    assert "step 40" in end
    assert "running" not in end
    assert "<i>rate</i>" in end, "names of the user's are text"
    for rank in (0, 1):
        assert f"[rank {rank}] trained" in notebook.text(0)
    notebook.window.screenshot("panel-ended-dark")

    saved = notebook.save()
    kept = [o.data["text/html"] for o in saved.cells[0].outputs if "text/html" in o.get("data", {})]
    assert len(kept) == 1
    assert "finished after" in kept[0]
    assert "<script" not in kept[0]
    notebook.window.use_theme(LIGHT)
    notebook.reload()
    panel.wait_for()
    assert panel.inner_text() == end
    assert panel.locator("svg").count() == 2
    notebook.window.screenshot("panel-saved")
