"""Tracks a small run on two ranks with a real library, offline, and reads its files back.

Run as a script in a process of its own, since such libraries start threads and services:
``python -m tests.runtime.tracker_files NAME FOLDER`` prints what was found as JSON.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Found = dict[str, Any]
"""``runs``: how many; ``loss``: ``[step, value]`` pairs; ``config``: as the library keeps it; ``more``."""

ENVIRONMENT = {
    "wandb": {"WANDB_MODE": "offline", "WANDB_SILENT": "true"},
    "trackio": {"TRACKIO_DIR": "trackio", "HF_HUB_OFFLINE": "1"},
    "comet_ml": {"COMET_OFFLINE_DIRECTORY": ".", "COMET_DISABLE_AUTO_LOGGING": "1"},
    "clearml": {"CLEARML_CACHE_DIR": "cache", "CLEARML_OFFLINE_MODE": "1"},
    "aim": {"AIM_UI_TELEMETRY_ENABLED": "0"},
    "dvclive": {"DVC_NO_ANALYTICS": "1"},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "comet_ml": {"online": False},
    "dvclive": {"save_dvc_exp": False, "dir": "live"},
    "swanlab": {"mode": "offline"},
    "mlflow": {"logging_dir": "mlruns", "run_name": "first", "tags": '{"kind": "test"}'},
}


class Odd:
    """Something that no tracker knows."""

    def __str__(self) -> str:
        return "odd"


def track(name: str, options: dict[str, Any]) -> int:
    """What each rank does; returns the number of trackers that are open on it."""
    import numpy as np
    import torch

    from nbaccel import Accelerator

    accelerator = Accelerator(log_with=name, project_dir="files")
    config = {"lr": 0.5, "net": {"depth": 3}, "none": None, "t": torch.tensor(2.0), "odd": Odd()}
    accelerator.init_trackers("project", config, init_kwargs={name: options})
    for step in range(3):
        accelerator.log({"loss": torch.tensor(2.0**-step), "np": np.float32(step), "note": "text"}, step=step)
    tracker = accelerator.get_tracker(name)
    if accelerator.is_main_process:
        picture = np.zeros((8, 8, 3), dtype=np.uint8)
        if name == "tensorboard":
            tracker.log_images({"image": picture[None]}, step=2, dataformats="NHWC")
        elif name in {"aim", "clearml"}:
            tracker.log_images({"image": picture}, step=2)
        elif hasattr(tracker, "log_images"):
            tracker.log_images({"image": [picture]}, step=2)
        if hasattr(tracker, "log_table"):
            tracker.log_table("table", columns=["a", "b"], data=[[1, "x"], [2, "y"]], step=2)
        if name == "mlflow":
            Path("notes.txt").write_text("kept")
            tracker.log_artifact("notes.txt", "texts")
    accelerator.end_training()
    return len(accelerator.trackers)


def _tensorboard() -> Found:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator("files/project")
    events.Reload()
    (text,) = {e.tensor_proto.string_val[0].decode() for e in events.Tensors("note/text_summary")}
    images = [(e.width, e.height) for e in events.Images("image")]
    (hparams,) = [path for path in Path("files/project").iterdir() if path.is_dir()]
    inner = EventAccumulator(str(hparams))
    inner.Reload()
    content = inner.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    config = {key: key.encode() in content for key in ("lr", "net/depth", "none", "t", "odd")}
    loss = [[e.step, e.value] for e in events.Scalars("loss")]
    runs = len(list(Path("files/project").glob("events*")))
    return {"runs": runs, "loss": loss, "config": config, "more": [text, images]}


def _wandb() -> Found:
    from wandb.proto import wandb_internal_pb2

    (path,) = Path("wandb").glob("offline-run-*/*.wandb")
    loss, config, more = [], {}, set()
    for data in _log_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        row = {
            item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
        }
        if "loss" in row:
            loss.append([row["_step"], row["loss"]])
        more |= {f"{key}: {value}" for key, value in row.items() if key.endswith("/_type") or key == "note"}
        for update in (*record.config.update, *record.run.config.update):
            config[update.key or update.nested_key[0]] = json.loads(update.value_json)
    config = {key: value for key, value in config.items() if not key.startswith("_")}
    runs = len(list(Path("wandb").glob("offline-run-*")))
    return {"runs": runs, "loss": loss, "config": config, "more": sorted(more)}


def _log_records(data: bytes) -> Iterator[bytes]:
    """Records of a LevelDB log with a 7-byte header: blocks of 32 KiB, each piece with its own head."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # whole, or the last piece
            yield parts
            parts = b""


def _mlflow() -> Found:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{Path('mlruns/mlflow.db').absolute()}")
    experiment = client.get_experiment_by_name("project")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    run = runs[0]
    loss = [[m.step, m.value] for m in client.get_metric_history(run.info.run_id, "loss")]
    kept = [str(path.relative_to("mlruns")) for path in Path("mlruns").rglob("notes.txt")]
    more = [run.info.run_name, run.data.tags["kind"], run.info.status, len(kept)]
    return {"runs": len(runs), "loss": loss, "config": run.data.params, "more": more}


def _trackio() -> Found:
    (path,) = Path("trackio").glob("*.db")
    connection = sqlite3.connect(path)
    configs = [json.loads(text) for (text,) in connection.execute("select config from configs")]
    rows = connection.execute("select step, metrics from metrics order by step").fetchall()
    connection.close()
    metrics = [(step, json.loads(text)) for step, text in rows]
    config = {key: value for key, value in configs[0].items() if not key.startswith("_")}
    loss = [[step, values["loss"]] for step, values in metrics]
    return {"runs": len(configs), "loss": loss, "config": config, "more": [v["note"] for _, v in metrics]}


def _comet_ml() -> Found:
    (path,) = Path().glob("*.zip")
    with zipfile.ZipFile(path) as archive:
        messages = [json.loads(line)["payload"] for line in archive.read("messages.json").splitlines()]
    parameters = [m["param"] for m in messages if "param" in m]
    metrics = [m["metric"] for m in messages if "metric" in m]
    loss = [[m["step"], m["metricValue"]] for m in metrics if m["metricName"] == "loss"]
    notes = [m["value"] for m in messages if m.get("key") == "note"]
    config = {p["paramName"]: p["paramValue"] for p in parameters if not p["paramName"].startswith("run_arg")}
    del config["curr_step"]  # Comet's own
    return {"runs": len(list(Path().glob("*.zip"))), "loss": loss, "config": config, "more": notes}


def _aim() -> Found:
    # Aim 3.29's own reader doesn't find a finished run, not even one that its own API alone wrote, and its
    # tables are compressed: the names are looked for in them, but values can't be.
    runs = [path for path in Path("files/.aim/meta/chunks").iterdir() if path.is_dir()]
    meta = b"".join(path.read_bytes() for path in runs[0].glob("*.sst"))
    series = b"".join(path.read_bytes() for path in Path("files/.aim/seqs/chunks").rglob("*.sst"))
    config = {name: name.encode() in meta for name in ("hparams", "depth", "odd")}
    more = {name: name.encode() in series for name in ("loss", "note", "image")}
    return {"runs": len(runs), "loss": None, "config": config, "more": more}


def _clearml() -> Found:
    paths = list(Path("cache").rglob("offline-*.zip"))
    with zipfile.ZipFile(paths[0]) as archive:
        task = json.loads(archive.read("task.json"))
        reported = [json.loads(line) for line in archive.read("metrics.jsonl").splitlines()]
        events = [event for line in reported for event in (line if isinstance(line, list) else [line])]
    loss = [[e["iter"], e["value"]] for e in events if e["metric"] == "loss"]
    more = sorted({e["metric"] for e in events} - {"loss", "np"})
    config = task["configuration"]["General"]["value"].splitlines()
    return {"runs": len(paths), "loss": loss, "config": config, "more": more}


def _dvclive() -> Found:
    import yaml

    lines = Path("live/plots/metrics/loss.tsv").read_text().splitlines()
    loss = [[int(step), float(value)] for step, value in (line.split("\t") for line in lines[1:])]
    config = yaml.safe_load(Path("live/params.yaml").read_text())
    last = json.loads(Path("live/metrics.json").read_text())
    return {"runs": len(list(Path().glob("live"))), "loss": loss, "config": config, "more": last["note"]}


def _swanlab() -> Found:
    import yaml

    runs = list(Path("swanlog").glob("run-*"))
    (path,) = runs[0].glob("*.swanlab")
    data = path.read_bytes()
    noted = yaml.safe_load((runs[0] / "files/config.yaml").read_text())
    # Its log has no public reader: the values are looked for as they are written, after the name.
    loss = [
        [step, value]
        for step, value in enumerate((1.0, 0.5, 0.25))
        if struct.pack("<d", value) in data[data.find(b"loss") :]
    ]
    config = {key: entry["value"] for key, entry in noted.items()}
    return {"runs": len(runs), "loss": loss, "config": config, "more": [b"image" in data, b"note" in data]}


READERS: dict[str, Callable[[], Found]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "trackio": _trackio,
    "comet_ml": _comet_ml,
    "aim": _aim,
    "clearml": _clearml,
    "dvclive": _dvclive,
    "swanlab": _swanlab,
}


def main(name: str, folder: str) -> None:
    os.chdir(folder)
    os.environ.update(ENVIRONMENT.get(name, {}))
    from nbaccel import notebook_launcher

    opened = notebook_launcher(
        track, (name, OPTIONS.get(name, {})), num_processes=2, cpu=True, returns="all", timeout=100
    )
    sys.stdout.write("found:" + json.dumps({"opened": opened, **READERS[name]()}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
