"""Settings: what may be said, by whom, and what comes of it.

::

    explicit argument or flag > session's form > NBACCEL_* > config file > default
                                  └──────────── resolve() ───────────┘
                                                   │
                                   Resolved: each value with its origin

``spec`` holds the result that workers read, ``settings`` the table of keys, ``sources`` the order,
``conflicts`` what can't be said together, ``file`` and ``incumbent`` the files. Importing this package
reads nothing and pulls in nothing beyond the standard library.
"""

from __future__ import annotations

from nbaccel.config.settings import SETTINGS, Setting, setting
from nbaccel.config.sources import (
    AUTO,
    Origin,
    Resolved,
    Value,
    ambient,
    config_path,
    resolve,
    session_values,
    set_session_values,
)
from nbaccel.config.spec import (
    OUTPUT_MODES,
    PRECISIONS,
    PROGRESS_MODES,
    RENDEZVOUS_BACKENDS,
    START_METHODS,
    LaunchSpec,
    active_spec,
    check_mixed_precision,
    set_active_spec,
    unknown_precision,
)
from nbaccel.config.unsaid import UnsaidInt, UnsaidText, said

__all__ = [
    "AUTO",
    "OUTPUT_MODES",
    "PRECISIONS",
    "PROGRESS_MODES",
    "RENDEZVOUS_BACKENDS",
    "SETTINGS",
    "START_METHODS",
    "LaunchSpec",
    "Origin",
    "Resolved",
    "Setting",
    "UnsaidInt",
    "UnsaidText",
    "Value",
    "active_spec",
    "ambient",
    "check_mixed_precision",
    "config_path",
    "resolve",
    "said",
    "session_values",
    "set_active_spec",
    "set_session_values",
    "setting",
    "unknown_precision",
]
