"""Trackers of a run, as the Accelerator shows them."""

from __future__ import annotations

from typing import Any

from nbaccel.config import active_spec
from nbaccel.runtime import process_group
from nbaccel.runtime.facets.core import AcceleratorParts
from nbaccel.runtime.facets.processes import ProcessFacet
from nbaccel.runtime.gauges import gauges
from nbaccel.runtime.tracking.base import GeneralTracker
from nbaccel.runtime.tracking.choice import build_tracker


class TrackingFacet(ProcessFacet, AcceleratorParts):
    """Trackers live on rank 0 only, unless one says otherwise; elsewhere calls do nothing."""

    @property
    def logging_dir(self) -> Any:
        """Where trackers write files."""
        return self.project_configuration.logging_dir

    @property
    def trackers(self) -> list[GeneralTracker]:
        """The trackers that are open here: usually all of them on rank 0, and none elsewhere."""
        return self._trackers

    @property
    def log_with(self) -> list[str | GeneralTracker]:
        """The trackers that :meth:`init_trackers` opens, by name or as objects."""
        return self._log_with

    def init_trackers(
        self,
        project_name: str,
        config: dict[str, Any] | None = None,
        init_kwargs: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        """Open a run with every tracker of ``log_with``.

        Args:
            project_name: name of the project or run.
            config: hyper-parameters, noted at the start.
            init_kwargs: further options by tracker name.
        """
        for wanted in self._log_with:
            kind = wanted if isinstance(wanted, GeneralTracker) else None
            alone = kind.main_process_only if kind is not None else True
            if alone and not self.is_main_process:
                continue
            if kind is None:
                options = (init_kwargs or {}).get(str(wanted), {})
                kind = build_tracker(str(wanted), project_name, self.logging_dir, options)
            kind.start()
            if config is not None:
                kind.store_init_configuration(config)
            self._trackers.append(kind)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """The tracker called ``name``; on other ranks one that does nothing.

        Args:
            name: as in ``log_with``.
            unwrap: return the object behind it.

        Raises:
            ValueError: no such tracker was opened.
        """
        for tracker in self._trackers:
            if tracker.name == name:
                return tracker.tracker if unwrap else tracker
        if not self.is_main_process:
            return GeneralTracker(_blank=True)
        opened = ", ".join(t.name for t in self._trackers) or "none; call init_trackers first"
        raise ValueError(f"no tracker {name!r} was opened (opened: {opened})")

    def log(
        self,
        values: dict[str, Any],
        step: int | None = None,
        log_kwargs: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        """Note ``values`` at ``step`` with every tracker, and for the live panel where one is shown.

        Args:
            values: numbers, tensors of one element, or text by name.
            step: the training step.
            log_kwargs: further options by tracker name.
        """
        own = gauges()
        if own.watching:
            own.note(values, step)
        for tracker in self._trackers:
            tracker.log(values, step=step, **(log_kwargs or {}).get(tracker.name, {}))

    def expect(self, *, epochs: int | None = None, steps: int | None = None) -> None:
        """Tell the live panel how long the run is, so that it can say how much time is left.

        Args:
            epochs: passes over the loader that is trained on.
            steps: optimizer steps, where the run is counted in those.

        Raises:
            ValueError: a number below 1.
        """
        for name, number in (("epochs", epochs), ("steps", steps)):
            if number is not None and number < 1:
                raise ValueError(f"expect({name}={number!r}): a run has at least 1; leave it out if unknown")
        gauges().expect(epochs, steps)

    def end_training(self) -> None:
        """Close the trackers. Collectives on this Accelerator are refused from now on.

        A second call does nothing. In a launched worker the process group stays up for others.
        """
        if self._ended:
            return
        for tracker in self._trackers:
            tracker.finish()
        if self.use_distributed:
            self.wait_for_everyone()
        self._ended = True
        if active_spec() is None:
            process_group.shutdown_own_process_group()
