"""The studies of the paper by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.errors import InputError, did_you_mean
from bixse.lab.paper import training_studies
from bixse.lab.paper.memory import MEMORY
from bixse.lab.paper.rankers import RANKERS

if TYPE_CHECKING:
    from bixse.lab.studies.study import Study

STUDIES = {study.name: study for study in (*training_studies.STUDIES, RANKERS, MEMORY)}
"""Name -> study, in the order of the paper."""


def describe_studies() -> str:
    """What each study asks, what the paper found, and what it goes through."""
    lines = []
    for study in STUDIES.values():
        lines += [f"{study.name}: {study.title}", f"  the paper: {study.paper}"]
        lines += [f"  {key}: {value}" for key, value in study.defaults.items()]
    return "\n".join(lines)


def find_study(name: str) -> Study:
    """A study by its name; raises InputError with the closest one."""
    if name not in STUDIES:
        raise InputError(
            f"study: got {name!r}; expected one of {', '.join(STUDIES)}; fix: {did_you_mean(name, STUDIES)}"
        )
    return STUDIES[name]
