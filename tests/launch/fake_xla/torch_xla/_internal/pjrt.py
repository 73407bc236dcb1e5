"""Of the stand-in: the start of the runtime."""

import torch_xla

arguments: list[tuple[int, ...]] = []


def initialize_singleprocess() -> None:
    torch_xla.calls.append("initialize_singleprocess")
    arguments.append(())
    torch_xla.start()


def initialize_multiprocess(local_rank: int, local_world_size: int) -> None:
    torch_xla.calls.append("initialize_multiprocess")
    arguments.append((local_rank, local_world_size))
    torch_xla.start()
