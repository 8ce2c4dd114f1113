"""A judge by its name: a server's address, a local model, a cross-encoder, or a file of existing judgements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bixse.grading.judge import Judge
    from bixse.grading.rubrics import Rubric
    from bixse.relevance import GradeScale

CROSS_ENCODER = "cross-encoder:"
REPLAY = "replay:"
KINDS = "an address (http://...), a model's name or folder, cross-encoder:NAME or replay:FORMAT:FILE"
"""What `--judge` takes."""


@dataclass(frozen=True)
class JudgeOptions:
    """Settings of judges; each kind takes those that concern it."""

    model: str | None = None
    """Server: the model to ask for; None: the one it serves."""
    revision: str | None = None
    """Revision of the model, part of every question's key."""
    mode: str = "auto"
    """Server: how the grade is read, see `bixse.grading.judge.Mode`; "auto" takes probabilities or refuses."""
    samples: int = 10
    """Server: answers drawn a question in the mode "sample"."""
    max_tokens: int | None = None
    """Server: most tokens an answer may have; None: what the probe found."""
    concurrency: int = 64
    """Server: most requests in flight an address."""
    timeout: float = 120.0
    """Server: seconds for one request."""
    api_key_variable: str = "OPENAI_API_KEY"
    """Server: environment variable that holds the key."""
    dtype: str = "auto"
    """Local and cross-encoder: number type of the weights; "auto": as the process is set."""
    device: str | None = None
    """Local and cross-encoder: device; None: the best there is."""
    tokens_per_batch: int | None = None
    """Local: positions in one forward pass; None: chosen for the device."""
    score_map: str | None = None
    """Cross-encoder and replay: how scores become relevance."""
    scale: GradeScale | None = None
    """Replay: the scale of its grades where the format does not say."""
    collection: Path | None = None
    """Replay: where texts are where the format has only ids."""


def reads_rubric(names: Sequence[str]) -> bool:
    """Whether judges of this name are asked with a rubric."""
    return not any(name.startswith((CROSS_ENCODER, REPLAY)) for name in names)


def open_judge(names: Sequence[str], rubric: Rubric, options: JudgeOptions | None = None) -> Judge:
    """Open the judge that `--judge` names; several addresses are endpoints of one judge.

    Args:
        names: one name, or the addresses of several servers of the same model.
        rubric: what is asked, for judges that read one.
        options: settings; defaults when None.

    Raises:
        InputError: no such judge, several that are not all addresses, or an extra that is not installed.
    """
    options = options or JudgeOptions()
    servers = [name for name in names if name.startswith(("http://", "https://"))]
    if servers and len(servers) == len(names):
        from bixse.grading.server.server_judge import ServerJudge

        return ServerJudge(
            servers,
            rubric,
            model=options.model,
            mode=options.mode,
            samples=options.samples,
            max_tokens=options.max_tokens,
            revision=options.revision,
            api_key_variable=options.api_key_variable,
            concurrency=options.concurrency,
            timeout=options.timeout,
        )
    if len(names) != 1 or not names[0].strip():
        raise InputError(
            f"--judge: got {shorten(', '.join(names))}; expected one of: {KINDS}; fix: name one judge "
            "(several addresses may serve one)"
        )
    name = names[0]
    if name.startswith(REPLAY):
        from bixse.grading.replay.replay_judge import open_replay

        return open_replay(name, options.collection, options.score_map, options.scale)
    if name.startswith(CROSS_ENCODER):
        from bixse.grading.local.cross_encoder_judge import CrossEncoderJudge

        return CrossEncoderJudge(
            name.removeprefix(CROSS_ENCODER),
            options.score_map,
            device=options.device,
            dtype=options.dtype,
            revision=options.revision,
        )
    from bixse.grading.local.local_judge import LocalJudge

    return LocalJudge(
        name,
        rubric,
        device=options.device,
        dtype=options.dtype,
        tokens_per_batch=options.tokens_per_batch,
        revision=options.revision,
    )
