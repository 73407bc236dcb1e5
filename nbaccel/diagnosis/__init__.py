"""What a person needs who wonders why something doesn't run: a report, and a self test in stages.

Both are data first (sections of rows, results of stages); terminal, notebook and form each show them in
their own way. Neither changes anything.
"""

from __future__ import annotations
