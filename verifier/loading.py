"""Loads jobs, each once: its Programs, its dataset, and the public data that its claims start from."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lockstep.base.cache import MemoryCache
from lockstep.execution import footprint
from lockstep.execution.footprint import Fitting
from lockstep.execution.jobs import Job
from lockstep.market.replay import PublicData
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import JobId
from lockstep.runtime.party import Party

Load = Callable[..., Job]
"""`box.loading.load`, or `invalidity.load`, which runs a job's Programs in this process."""


class LoadedJobs:
    """Holds the jobs that one worker thread works on."""

    def __init__(self, party: Party, load: Load, cache: MemoryCache | None = None) -> None:
        """`cache` holds checkpoints and payloads for the next claims."""
        self._load = load
        self._store = party.store
        self._settings = party.settings
        self._cache = cache
        self._loaded: dict[JobId, PublicData] = {}

    def get(self, job: JobId, params: JobParams, *, fits: bool = False) -> PublicData:
        """Returns the public data of a job, and loads the job first if needed. Runs on the worker thread.

        Raises ProgramInvalid if the job breaks a rule, the store's errors, and with `fits` Unfit if this machine cannot
        hold it.
        """
        if job not in self._loaded:
            threads, path = self._settings.threads, self._settings.path
            check = Fitting(footprint.verifier, path=path) if fits else None
            loaded = self._load(job, params, self._store, threads, path, fits=check)
            self._loaded[job] = PublicData(loaded, self._store, self._cache)
        return self._loaded[job]

    def stop(self, job: JobId, order_of: int) -> None:
        """Kills the process that runs a job's Programs, if it works for this thread, which then gets Cancelled."""
        found = self.find(job)
        if found is not None and found.box is not None:
            found.box.stop(order_of)

    def let_go(self, jobs: Iterable[JobId]) -> None:
        """Drops these jobs and ends the processes that run their Programs; the next `get` loads a job again."""
        for job in jobs:
            public = self._loaded.pop(job, None)
            if public is not None and public.job.box is not None:
                public.job.box.close()

    def find(self, job: JobId) -> Job | None:
        """Returns a job if it is loaded."""
        public = self._loaded.get(job)
        return None if public is None else public.job
