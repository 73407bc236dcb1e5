"""``display``, figures, ``clear_output`` in workers: what reaches the cell of a real kernel."""

import base64
import re

import pytest

IMPORT = "from nbaccel import notebook_launcher\n"
PNG = b"\x89PNG\r\n"


def launch(kernel, body, *, n=2, options="", before="", **how):
    indented = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    call = f"notebook_launcher(work, num_processes={n}, cpu=True{options})"
    return kernel.run(f"{IMPORT}{before}\ndef work():\n{indented}\n{call}\n", **how)


def sequence(result):
    """Texts and displays in their order, our own line left out."""
    items = []
    for output in result.outputs:
        if output.kind == "stream":
            items += [line for line in output.text.splitlines() if not line.startswith("nbaccel: ")]
        else:
            items.append((output.kind, output.text))
    return items


def is_png(output):
    return base64.b64decode(output.data["image/png"]).startswith(PNG)


@pytest.mark.parametrize(
    ("before", "body"),
    [
        ("", "display({'a': 1})"),
        ("from IPython.display import display", "display({'a': 1})"),
        ("", "from IPython.display import display\ndisplay({'a': 1})"),
    ],
    ids=["builtin", "imported in the notebook", "imported in the function"],
)
def test_a_display_stands_among_the_text(kernel, before, body):
    body = f"import sys\nprint('one')\n{body}\nprint('two', file=sys.stderr)\n{body}\nprint('three')"
    result = launch(kernel, body, n=1, before=before)
    shown = ("display_data", "{'a': 1}")
    assert sequence(result) == ["one", shown, "two", shown, "three"]


@pytest.mark.parametrize("start_method", ["zygote", "spawn", "fork"])
def test_displays_of_several_processes_are_labelled(kernel, start_method):
    result = launch(kernel, "display(1)", options=f", start_method={start_method!r}")
    items = sequence(result)
    assert sorted(items, key=str) == sorted(
        ["[rank 0] displays:", ("display_data", "1"), "[rank 1] displays:", ("display_data", "1")], key=str
    )
    assert isinstance(items[1], tuple)
    assert isinstance(items[3], tuple)


def test_only_shown_ranks_display(kernel):
    result = launch(kernel, "import os\ndisplay(os.environ['RANK'])", options=", output='main'")
    assert [output.text for output in result.displays] == ["'0'"]
    assert launch(kernel, "display(1)", options=", output='none'").displays == []


def test_rich_objects_keep_all_their_forms(kernel):
    body = """
class Table:
    def _repr_html_(self): return "<table></table>"
    def _repr_latex_(self): return "$x$"
class Own:
    def _repr_mimebundle_(self, **kwargs):
        return {"application/json": {"a": [1, None, (2.5,)]}, "text/plain": "own"}, {"text/plain": {"k": 1}}
display(Table())
display(Own())
"""
    table, own = launch(kernel, body, n=1).displays
    assert table.data["text/html"] == "<table></table>"
    assert table.data["text/latex"] == "$x$"
    assert own.data == {"application/json": {"a": [1, None, [2.5]]}, "text/plain": "own"}


def test_pictures_given_as_bytes(kernel):
    body = f"from IPython.display import Image\ndisplay(Image(data={PNG + b'rest'!r}, format='png'))"
    (picture,) = launch(kernel, body, n=1).displays
    assert base64.b64decode(picture.data["image/png"]) == PNG + b"rest"


def test_values_of_notebook_classes_in_a_bundle_can_t_harm_the_kernel(kernel):
    body = """
class Text(str): pass
class Odd:
    def __str__(self): return "odd"
display({"text/plain": Text("text"), "application/json": {"x": Odd()}}, raw=True)
"""
    (shown,) = launch(kernel, body, n=1).displays
    assert shown.data == {"text/plain": "text", "application/json": {"x": "odd"}}


def test_an_update_changes_what_the_same_rank_has_displayed(kernel):
    body = """
import os
handle = display("old", display_id="name")
handle.update("new of " + os.environ["RANK"])
"""
    cell = kernel.submit(
        f"{IMPORT}def work():\n"
        + "\n".join(f"    {x}" for x in body.strip().split("\n"))
        + "\nnotebook_launcher(work, num_processes=2, cpu=True)"
    )
    result = cell.wait(may_fail=False)
    updates = [output.text for output in result.outputs if output.kind == "update_display_data"]
    assert sorted(updates) == ["'new of 0'", "'new of 1'"]


def test_clear_output_clears_the_cell(kernel):
    body = "from IPython.display import clear_output\nprint('old')\nclear_output(wait=True)\nprint('new')"
    result = launch(kernel, body)
    # Only the main rank may: what it clears is everybody's.
    assert [output.kind for output in result.outputs].count("clear_output") == 1
    assert "[rank 1] new" in result.stdout


def test_figures_reach_the_cell(kernel):
    pytest.importorskip("matplotlib")
    body = """
import matplotlib.pyplot as plt
print("before")
plt.plot([1, 2])
plt.show()
print("between")
plt.figure()
plt.show()  # an empty one isn't worth a picture
plt.subplots()  # never shown, so it comes at the end, as in a notebook
"""
    result = launch(kernel, body, n=1)
    figure = ("display_data", "<Figure size 640x480 with 1 Axes>")
    assert sequence(result) == ["before", figure, "between", figure]
    assert all(map(is_png, result.displays))


def test_a_figure_may_be_displayed_as_an_object(kernel):
    pytest.importorskip("matplotlib")
    body = """
import matplotlib.pyplot as plt
figure, axes = plt.subplots()
plt.close(figure)
display(figure)
from matplotlib.figure import Figure
display(Figure())
"""
    shown = launch(kernel, body, n=1).displays
    assert len(shown) == 2
    assert all(map(is_png, shown))


def test_figures_of_the_kernel_s_own_are_not_shown_again_by_a_fork(kernel):
    pytest.importorskip("matplotlib")
    kernel.run("import matplotlib.pyplot as plt; plt.ioff(); theirs = plt.figure(); theirs.add_subplot()")
    result = launch(
        kernel,
        "plt.plot([1]); plt.show()",
        n=1,
        options=", start_method='fork'",
        before="import matplotlib.pyplot as plt",
    )
    from_worker = [o for o in result.displays if o.data.get("image/png")]
    assert len(from_worker) == 1
    kernel.run("plt.close('all'); plt.ion()")


def test_a_backend_that_was_chosen_on_purpose_stays(kernel):
    pytest.importorskip("matplotlib")
    body = "import matplotlib\nreturn matplotlib.get_backend().lower()"
    result = launch(kernel, body, n=1, options=", env={'MPLBACKEND': 'svg'}")
    assert result.displays[0].text == "'svg'"


def test_a_widget_is_shown_as_text(kernel):
    pytest.importorskip("ipywidgets")
    (shown,) = launch(kernel, "import ipywidgets\ndisplay(ipywidgets.IntSlider())", n=1).displays
    assert list(shown.data) == ["text/plain"]
    assert shown.text.startswith("IntSlider(")


def test_a_child_of_a_worker_prints_the_text_form(kernel):
    body = """
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=lambda: display([1, 2]))
child.start()
child.join()
"""
    result = launch(kernel, body, n=1)
    assert "[1, 2]\n" in result.stdout
    assert not result.displays


def test_displays_of_threads_arrive(kernel):
    body = """
import threading
threads = [threading.Thread(target=display, args=(i,)) for i in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    shown = launch(kernel, body, n=1).displays
    assert sorted(int(output.text) for output in shown) == list(range(20))


def test_a_large_display(kernel):
    (shown,) = launch(
        kernel, "from IPython.display import HTML\ndisplay(HTML('x' * 5_000_000))", n=1
    ).displays
    assert len(shown.data["text/html"]) == 5_000_000


def test_interrupts_never_cut_a_display_in_two(kernel):
    """A display is under way nearly all the time, so that the interrupt meets one."""
    cell = kernel.submit(
        f"""{IMPORT}
def work():
    from IPython.display import HTML
    while True:
        display(HTML("x" * 300_000))
notebook_launcher(work, num_processes=2, cpu=True)
"""
    )
    cell.wait_for_output(lambda output: output.kind == "display_data", timeout=20)
    kernel.interrupt()
    result = cell.wait(timeout=15)
    assert result.error.ename == "KeyboardInterrupt"
    assert all(len(output.data["text/html"]) == 300_000 for output in result.displays)
    assert kernel.run("print('alive')").stdout == "alive\n"


def test_what_can_t_be_adapted_warns_and_the_import_goes_on(kernel):
    body = """
import sys, types, warnings
from nbaccel.launch.worker.after_import import after_import
def refuse(module): raise AttributeError("another version")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    after_import({"colorsys": refuse})
    import colorsys
print(colorsys.__spec__.loader.__class__.__name__, caught[0].message)
"""
    result = launch(kernel, body, n=1)
    assert re.search(
        r"^SourceFileLoader nbaccel could not adapt colorsys .*another version", result.stdout, re.MULTILINE
    )
