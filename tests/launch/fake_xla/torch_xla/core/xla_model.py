"""Of the stand-in: the devices of this process."""

import torch_xla


def get_xla_supported_devices() -> list[str]:
    torch_xla.calls.append("get_xla_supported_devices")
    torch_xla.start()
    return torch_xla.local_devices()
