"""Changing a config file leaves in it what was written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nbaccel.config import file
from nbaccel.config.edit import edited
from nbaccel.errors import ConfigError

WRITTEN = """\
# our machine
version: 1
num_processes: 2  # two GPUs
colour: blue

# which ones
devices:
  - 0
  - 1   # the second
# precision comes last
mixed_precision: 'no'
"""


def test_comments_order_and_strange_keys_stay() -> None:
    text = edited(WRITTEN, {"num_processes": 3, "devices": [0, 2, 3], "output": "main"})
    assert text == (
        "# our machine\n"
        "version: 1\n"
        "num_processes: 3  # two GPUs\n"
        "colour: blue\n"
        "\n"
        "# which ones\n"
        "devices: [0, 2, 3]   # the second\n"
        "# precision comes last\n"
        "mixed_precision: 'no'\n"
        "output: main\n"
    )


def test_a_key_goes_with_its_line() -> None:
    text = edited(WRITTEN, {"num_processes": None, "devices": None, "timeout": None})
    assert text == (
        "# our machine\nversion: 1\ncolour: blue\n\n# which ones\n"
        "# precision comes last\nmixed_precision: 'no'\n"
    )


def test_a_last_line_without_end_and_an_empty_value() -> None:
    assert edited("num_processes: 2\nlog_dir:", {"log_dir": "a: b", "cpu": True}) == (
        "num_processes: 2\nlog_dir: 'a: b'\ncpu: true\n"
    )
    assert edited("", {"cpu": True}) == "cpu: true\n"


@pytest.mark.parametrize("text", ["{num_processes: 2, x: 1}\n", "x: &a 1\nnum_processes: *a\n", "? x\n: 1\n"])
def test_what_cannot_be_cut_into_is_written_anew(text: str) -> None:
    changed = yaml.safe_load(edited(text, {"num_processes": 4, "x": 7}))
    assert changed == {"num_processes": 4, "x": 7}


_KEYS = st.sampled_from(["a", "b b", "num_processes", "no", "ünï"])
_VALUES = st.one_of(
    st.integers(),
    st.booleans(),
    st.text(max_size=20),
    st.floats(allow_nan=False),
    st.lists(st.integers(0, 9)),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example({"a": 1}, {"a": "\x85"}, None)
@given(
    st.dictionaries(_KEYS, _VALUES),
    st.dictionaries(_KEYS, st.one_of(st.none(), _VALUES)),
    st.sampled_from([None, False, True]),
)
def test_the_result_reads_as_the_mapping_with_the_changes(
    before: dict[str, object], changes: dict[str, object], flow: bool | None
) -> None:
    text = yaml.safe_dump(before, default_flow_style=flow, allow_unicode=True) if before else ""
    # Not `before` itself: PyYAML writes some control characters (U+0085) so that it reads them as others.
    before = (yaml.safe_load(text) or {}) if text else {}
    wanted = {k: v for k, v in {**before, **changes}.items() if k not in changes or v is not None}
    assert (yaml.safe_load(edited(text, changes)) or {}) == wanted


def test_update_changes_what_differs_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("# mine\nuse_cpu: yes\nnum-processes: 2\ndevices: '0,1'\nfuture_key: 3\n")
    stored = dict(file.load(path).values)
    file.update({**stored, "num_processes": 4, "output": "main"}, path)
    assert path.read_text() == (
        "# mine\nuse_cpu: yes\nnum-processes: 4\ndevices: '0,1'\nfuture_key: 3\noutput: main\n"
    )
    file.update({}, path)
    assert path.read_text() == "# mine\nfuture_key: 3\n"


def test_update_makes_a_file_and_leaves_the_incumbents_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "c.yaml"
    assert file.update({"num_processes": 2}, path) == path
    assert path.read_text() == "version: 1\nnum_processes: 2\n"
    path.write_text("compute_environment: LOCAL_MACHINE\nnum_processes: 2\n")
    with pytest.raises(ConfigError, match="Hugging Face Accelerate and is left as it is"):
        file.update({"num_processes": 3}, path)
    assert path.read_text() == "compute_environment: LOCAL_MACHINE\nnum_processes: 2\n"
