"""All checks of one configuration, in the order in which faults are best mended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rl.doctor.check import Check, failed
from rl.doctor.extras import engine, trackers
from rl.doctor.versions import versions
from rl.errors import AuralignError
from rl.schema import RunConfig

if TYPE_CHECKING:  # torch may be what is missing
    from rl.arithmetic.memory import Component


@dataclass
class Report:
    """The checks, and the memory that a run would hold, by component; none where it can't be known."""

    name: str
    checks: list[Check] = field(default_factory=list)
    components: list[Component] = field(default_factory=list)

    @property
    def faults(self) -> list[Check]:
        """What keeps the configuration from running."""
        return [check for check in self.checks if check.verdict == "cannot run"]


def examine(run: RunConfig) -> Report:
    """Look at everything that ``run`` needs here. Nothing is loaded, started or changed.

    Where packages are missing, what needs them isn't looked at.
    """
    report = Report(run.name, versions())
    if any(check.found == "not installed" for check in report.faults):
        return report
    report.checks.append(engine(run))
    try:
        report.checks += trackers(run)
        _look(run, report)
    except ImportError as error:
        remedy = "install auralign again, with what it needs"
        report.checks.append(Check("packages", f"one can't be imported ({error})", "cannot run", remedy))
    return report


def _look(run: RunConfig, report: Report) -> None:
    from rl.arithmetic.memory import components
    from rl.doctor import files, licences, machine, rewards
    from rl.doctor.cluster import cluster
    from rl.doctor.endpoints import endpoints
    from rl.doctor.plan import plan_of
    from rl.doctor.room import disk, kv_cache, memory

    add = report.checks.extend
    try:
        here = machine.this_machine()
    except RuntimeError as error:
        words = f"CUDA fails ({' '.join(str(error).split())})"
        add([Check("GPUs", words, "cannot run", "mend the driver, or hide the GPUs: CUDA_VISIBLE_DEVICES=")])
        return
    add([machine.gpus(here)])
    policy_check, policy = files.policy(run)
    add([policy_check])
    shape = None
    if policy is not None:
        codec_check, shape = files.codec(run, policy.config)
        add([codec_check, *files.adapter(run, policy.folder)])
    prompt_checks, prompts = files.prompts(run)
    add([*prompt_checks, *files.run_folder(run)])
    reward_checks, nodes = rewards.nodes(run)
    add([*reward_checks, *rewards.downloads(nodes)])
    add(rewards.bias(run, nodes, policy.config.model_type if policy else ""))
    add(endpoints(nodes))
    add([licences.policy(policy.folder, policy.config)] if policy else licences.absent_policy(run))
    add(licences.rewards(nodes))
    add(cluster(run, nodes, here))
    gpu = bool(here.gpus)
    try:
        plan, assumed = plan_of(run, policy, shape, prompts, gpu)
    except AuralignError as error:
        add([failed("prompts.train", error, "mend that prompt")])
        return
    if plan is None:
        remedy = "give the policy and its codec first"
        add([Check("memory", "no estimate: the policy or its codec can't be read", "warning", remedy)])
        return
    of_nodes, unknown = rewards.components(nodes, gpu)
    report.components += [*components(plan), *of_nodes]
    add(memory(plan, report.components, here, assumed))
    for name in unknown:
        words = "its model's memory isn't known, and not in the estimate"
        add([Check(f"reward {name}", words, "warning", "give the node `models`, as rewards/node.py says")])
    add([*kv_cache(plan), disk(plan, policy.tokenizer if policy else 0)])
