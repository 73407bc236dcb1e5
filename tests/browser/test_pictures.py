"""The pictures of README.md, taken of the real thing: ``NBACCEL_WRITE_DOCS=1 make test-browser`` puts new
ones into ``docs/img``. Without it the story is played all the same, so that what they show can be done.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.browser.test_form import FormControls

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "img"
FORM = "import nbaccel\n\nnbaccel.configure()"
CELL = """\
%%accelerate --cpu -n 2
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from nbaccel import Accelerator

x = torch.linspace(-2, 2, 4096).unsqueeze(1)
data = TensorDataset(x, torch.sin(2 * x))
net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(
    net, torch.optim.Adam(net.parameters(), lr=0.01), DataLoader(data, batch_size=64, shuffle=True)
)
step = 0
for epoch in range(5):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        step += 1
        accelerator.log({"loss": loss.item()}, step=step)
print(f"{accelerator.device}: {len(loader)} batches of {accelerator.num_processes * 64} an epoch")
"""


def test_pictures_of_the_form_and_of_a_cell_at_work(open_notebook):
    notebook = open_notebook("%load_ext nbaccel", FORM, CELL)
    notebook.run(0)
    notebook.run(1)
    form = FormControls(notebook, 1)
    form.choice("mixed_precision").select_option(index=2)
    form.text("num_processes").fill("2")
    form.text("num_processes").press("Enter")
    notebook.window.wait_for(lambda: "2 processes" in form.root.inner_text(), 15, "what it comes to")
    _take(form.root, "form")

    notebook.run(2)
    assert "[rank 1] cpu: 32 batches of 128 an epoch" in notebook.text(2)
    assert notebook.outputs(2, ".nbp svg").count() == 1
    _take(notebook.cell(2), "cell")


def _take(what, name):
    picture = what.screenshot()
    assert picture.startswith(b"\x89PNG")
    if os.environ.get("NBACCEL_WRITE_DOCS"):
        PICTURES.mkdir(exist_ok=True)
        (PICTURES / f"{name}.png").write_bytes(picture)
