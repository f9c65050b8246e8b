"""Several learners on the Ray cluster, started by Ray Train, and started again when one of them dies."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from ray.train import FailureConfig, ScalingConfig, TrainingFailedError, WorkerGroupError
from ray.train import RunConfig as RayRun
from ray.train.torch import TorchConfig, TorchTrainer
from rich.console import Console

from rewards.graph import build_graph
from rl.cluster import check_room, check_total, connect
from rl.errors import AuralignError, ClusterError, LearnerLostError
from rl.live import LiveView, before_after_table
from rl.metrics import METRICS_FILE, read_metrics
from rl.run_folder import REPORT_FILE, read_evaluation
from rl.schema import RunConfig
from rl.trainer.checkpoints import last_checkpoint
from rl.trainer.learners import BACKEND_CPU, BACKEND_GPU, PATIENCE
from rl.trainer.run import check_fresh, run_folder, train

ATTEMPTS = 3  # deaths in a row, without a new checkpoint between them, after which the run is given up
GLANCE = 1.0  # seconds between two looks at the metrics

log = logging.getLogger(__name__)


def supervise(config: RunConfig, resume: Path | None = None) -> Path:
    """`rl.trainer.run.train` with `cluster.learners` processes, which Ray Train places in a placement group.

    When a learner dies, all are started again and go on from the last checkpoint; the workers that they had
    for rollouts and rewards end with them. This process only shows how the run goes on. Raises `ClusterError`
    when the learners don't fit on the cluster, or when they die `ATTEMPTS` times without a new checkpoint; an
    `AuralignError` of a learner as it is.
    """
    folder = (resume or run_folder(config)).absolute()
    if resume is None:
        check_fresh(folder)
    cluster = config.cluster
    connect(cluster.address)
    check_room(cluster.learners, cluster.learner_cpus, cluster.learner_gpus, "cluster.learner")
    check_total(_demands(config))
    history = read_metrics(folder / METRICS_FILE) if (folder / METRICS_FILE).exists() else []
    with LiveView(config.trainer.steps, history) as view:
        shown = history[-1]["time"] if history else 0.0

        def look() -> None:
            nonlocal shown
            rows = read_metrics(folder / METRICS_FILE) if (folder / METRICS_FILE).exists() else []
            for row in rows:
                if row["time"] > shown:
                    view.step(int(row["step"]), row)
                    shown = row["time"]

        deaths = 0
        while True:
            saved = last_checkpoint(folder)
            try:
                _fit(config, folder, resume is not None, look)
                break
            except TrainingFailedError as error:
                reason = _reason(error)
                deaths = deaths + 1 if last_checkpoint(folder) == saved else 1
                if deaths >= ATTEMPTS:
                    raise ClusterError(
                        f"cluster.learners: they died {ATTEMPTS} times without a new checkpoint ({reason}); "
                        "if they ran out of memory, lower trainer.micro_batch_tokens"
                    ) from error
                log.warning("a learner died (%s); all of them start again from the last checkpoint", reason)
    evaluation = read_evaluation(folder)
    if evaluation is not None:
        Console().print(before_after_table(evaluation.rows))
    Console().print(f"report: {folder / REPORT_FILE}", markup=False, soft_wrap=True)
    return folder


def _fit(config: RunConfig, folder: Path, resume: bool, look: Callable[[], None]) -> None:
    """One life of the learners, to the run's end; calls ``look`` now and then. Raises what Ray Train does."""
    cluster = config.cluster
    workplace = Path.cwd()

    def learn() -> None:
        os.chdir(workplace)  # what the configuration's relative paths start from
        begun = resume or (folder / METRICS_FILE).exists()
        train(config, resume=folder if begun else None)

    resources = {"CPU": cluster.learner_cpus}
    if cluster.learner_gpus:
        resources["GPU"] = cluster.learner_gpus
    with TemporaryDirectory(prefix="learners_") as own_files:
        trainer = TorchTrainer(
            learn,
            scaling_config=ScalingConfig(
                num_workers=cluster.learners,
                use_gpu=cluster.learner_gpus > 0,
                resources_per_worker=resources,
                placement_strategy="PACK",
            ),
            run_config=RayRun(
                name=folder.name, storage_path=own_files, failure_config=FailureConfig(max_failures=0)
            ),
            torch_config=TorchConfig(
                backend=BACKEND_GPU if cluster.learner_gpus else BACKEND_CPU,
                timeout_s=int(PATIENCE.total_seconds()),
            ),
        )
        outcome: Future[None] = Future()
        # beside the main thread, so that an interrupt ends this process as it does elsewhere
        threading.Thread(target=_settle, args=(outcome, trainer), daemon=True).start()
        while not wait([outcome], GLANCE).done:
            look()
        look()
        outcome.result()


def _settle(outcome: Future[None], trainer: TorchTrainer) -> None:
    try:
        trainer.fit()
    except Exception as error:  # noqa: BLE001 - raised again where the outcome is read
        outcome.set_exception(error)
    else:
        outcome.set_result(None)


def _demands(config: RunConfig) -> list[tuple[int, float, float]]:
    """How many actors of what CPUs and GPUs the run keeps on the cluster at once."""
    cluster, rollouts = config.cluster, config.rollouts
    pools = build_graph(asdict(config.rewards), config.evaluation.monitors).pools.values()
    on_ray = [pool.options for pool in pools if pool.options.where == "ray"]
    return [
        (cluster.learners, cluster.learner_cpus, cluster.learner_gpus),
        (rollouts.workers, rollouts.worker_cpus, rollouts.worker_gpus),
        *((o.workers, 1.0 if o.num_cpus is None else o.num_cpus, o.num_gpus) for o in on_ray),
    ]


def _reason(error: TrainingFailedError) -> str:
    """Why the learners ended, in one line. Raises what one of them raised for the user."""
    failures = error.worker_failures if isinstance(error, WorkerGroupError) else {}
    causes = [getattr(failure, "_base_exc", failure) for failure in failures.values()]  # within Ray's wrapper
    for cause in causes:
        if isinstance(cause, AuralignError) and not isinstance(cause, LearnerLostError):
            raise cause from error
    own = [cause for cause in causes if not isinstance(cause, LearnerLostError)]
    return " ".join(str(own[0] if own else error).split())
