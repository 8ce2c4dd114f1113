"""The base class of all losses: embed, build the targets, then pure tensor arithmetic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from bixse.encoders.embedding import (
    Features,
    embed_features,
    joined_columns,
    number_of_texts,
)
from bixse.encoders.loading.precision import without_autocast
from bixse.encoders.processes import all_reduce_sum, is_sharded, world_size
from bixse.errors import InputError, ModelError, shorten
from bixse.losses.catalogue import LossOptions
from bixse.losses.targets import GradedTargets, mean_grades

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.encoders.head import RelevanceHead


class GradedLoss(nn.Module, ABC):
    """The base of the losses on graded (query, document) pairs.

    A loss works with `GradedTrainer` and with sentence-transformers' own trainer. Its `labels` are

    - a tensor: (B,) relevance of flat (query, document) pairs, the columns query, document, label of a stock data set;
      or (B, K) relevance of K document columns next to the query;
    - a mapping: the tensors of `GradedTargets` over distinct documents, as `GradedTrainer` collates them.

    Equal documents of a batch, compared by the tokens that are read, are one column. A pair with several labels has
    their mean. An entry without a known relevance is irrelevant; relevance NaN masks an entry.

    Several processes (torch.distributed) share one batch: each has some of its queries and documents, and scores its
    queries against the documents of all. `order` among the document features is the position of each column of the
    batch among the gathered documents. The mean of the loss over processes is the loss of the global batch, and so are
    its gradients.
    """

    options_class: ClassVar[type[LossOptions]] = LossOptions
    learned_otherwise: str = "nothing"
    """Lesson from a query that lacks a required document, for warnings."""
    learns_differences: bool = False
    """True if the loss learns from two graded documents of a query, whatever their relevance."""
    dimensions: tuple[int, ...] = ()
    """Shorter lengths of the embeddings that are trained too."""

    def __init__(self, model: SentenceTransformer, **options: Any) -> None:
        super().__init__()
        _check_embeds(model)
        self.model = model
        self.options = self.options_class.load(None, options)
        self.statistics: dict[str, Tensor] = {}
        """Figures of the last batch for the log, over all processes, detached."""
        self.denominator = torch.zeros(())
        """Divisor of the last batch's sum on this rank, detached; 0 for an empty batch."""
        self._has_compared = False  # documents of one query, in any batch so far

    def trained_head(self, prior: float | None = None) -> RelevanceHead | None:
        """Return the relevance head that was learned with a mean target of `prior`; None without a probability."""
        return None

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | Mapping[str, Tensor] | None) -> Tensor:
        """Return the loss of one batch: the first feature set holds the queries, the others documents."""
        query_features, *document_features = list(sentence_features)
        if not document_features or labels is None:
            raise InputError(
                f"loss: got {1 + len(document_features)} text columns and {'no' if labels is None else 'some'} labels; "
                "expected a query column, at least one document column, and a relevance in [0, 1] for each pair; "
                "fix: give the data set the columns query, document, label"
            )
        order: Tensor | None = None
        if isinstance(labels, Mapping):
            (features,) = document_features
            order = features.get("order")
            document_features = [{name: value for name, value in features.items() if name != "order"}]
            first, columns = None, number_of_texts(features) if order is None else len(order)
            targets = GradedTargets(**labels, shape=(number_of_texts(query_features), columns))
        else:
            first, targets = self.targets_of_labels(query_features, document_features, labels)
        texts = [*document_features, query_features]
        if (joined := joined_columns(self.model, texts)) is None:
            with nullcontext() if self.options.gradient_cache else tokens_of_batch(self.model, texts):
                parts = [self._embed(features) for features in texts]
        else:  # common passes save work
            parts = [*self._embed(joined).split([number_of_texts(features) for features in texts])]
        queries, documents = parts.pop(), torch.cat(parts)
        embedded = queries, documents
        chosen = documents if first is None else documents[first]
        with without_autocast(queries.device):  # bf16 logits near -6 have steps of 0.03
            queries, chosen = _unit_length(queries), _unit_length(chosen)
            if order is not None:
                chosen = all_gather_rows(chosen, -(-len(order) // world_size()))[order]
            loss = self.compute_loss_from_embeddings(queries, chosen, targets)
            loss = loss * global_mean_weight(self.denominator).to(loss)  # denominators differ between processes
            if is_sharded(self.model):  # every process runs backward through all its passes, as each gathers weights
                loss = loss + 0.0 * sum(part.to(loss).sum() for part in embedded)
            return loss

    def targets_of_labels(
        self, query_features: Features, document_features: Sequence[Features], labels: Tensor
    ) -> tuple[Tensor, GradedTargets]:
        """Return the rows of the documents that become columns, and the targets of a stock trainer's batch."""
        rows = number_of_texts(query_features)
        relevance = table_of_labels(labels, rows, len(document_features))
        tokens = [tokens_without_padding(features) for features in document_features]
        width = max(part.shape[1] for part in tokens)
        padded = [torch.nn.functional.pad(part, (0, width - part.shape[1]), value=-1) for part in tokens]
        first, columns = identical_texts({"input_ids": torch.cat(padded)})
        columns = columns.reshape(len(document_features), rows).T  # (B, K)
        _, query_ids = identical_texts(query_features)
        graded = mean_grades(
            (query, document, value)
            for query, documents, values in zip(query_ids.tolist(), columns.tolist(), relevance.tolist(), strict=True)
            for document, value in zip(documents, values, strict=True)
        )
        targets = GradedTargets.from_ids(
            query_ids.tolist(), range(len(first)), graded, columns.tolist(), self.options.in_batch_labels
        )
        if not self._has_compared and not self.is_informative([1.0]):
            self._has_compared = bool((targets.rows.bincount() > 1).any())
            if not self._has_compared:  # only until one batch had two: a last batch is small
                raise InputError(
                    f"{type(self).__name__}: got a batch with one graded document for each of its {rows} queries; "
                    "expected two or more, whose order it learns; fix: give the data set a column for each document "
                    "of a query and as label a list with the relevance of each, or flat rows to GradedTrainer"
                )
        return first, targets.to(labels.device)

    def _embed(self, features: Features) -> Tensor:
        wrapper = type(vars(self.model).get("forward"))
        if wrapper.__module__.startswith("sentence_transformers."):
            if self.options.gradient_cache:
                name = wrapper.__module__.rpartition(".")[2]
                raise InputError(
                    f"gradient_cache: got it inside sentence-transformers' {name} loss, "
                    "which replaces the encoder's forward only until the backward pass; expected one of the two; "
                    "fix: leave gradient_cache out"
                )
            # MatryoshkaLoss and AdaptiveLayerLoss count the calls and keep states in the features that they gave:
            # no passes of copied rows, and nothing that is computed again later
            given: Any = features
            given.pop("lengths", None)  # for `embed_features`
            embeddings: Tensor = self.model(given)["sentence_embedding"]
            return embeddings
        if number_of_texts(features) == 0 and not is_sharded(self.model):
            # a process without texts of a batch still takes part in the exchange
            size = self.model.get_embedding_dimension()
            return torch.zeros(0, size or 0, device=features["input_ids"].device, requires_grad=True)
        return embed_features(self.model, features, self.options.mini_batch_size, self.options.gradient_cache)

    @property
    def with_head(self) -> GradedLoss:
        """The loss that learns scale and bias: this one, or the loss inside it."""
        return self

    @property
    def positive_from(self) -> float | None:
        """The lowest relevance of a relevant document; None: any above 0."""
        return getattr(self.options, "positive_from", None)

    @property
    def requires(self) -> str:
        """The documents that a query needs to teach what is relevant, in words."""
        low = self.positive_from
        at_least = "above 0" if low is None else f"of at least {low:g}"
        return "two graded documents" if self.learns_differences else f"a document with relevance {at_least}"

    def is_informative(self, relevance: Sequence[float]) -> bool:
        """Return True if a query with this relevance has the documents that the loss `requires`."""
        low = self.positive_from
        if self.learns_differences:
            return len(relevance) >= 2
        return any(z > 0 if low is None else z >= low for z in relevance)

    @abstractmethod
    def compute_loss_from_embeddings(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
        """Return the loss of (B, D) queries and (N, D) documents, both L2-normalised."""

    def get_config_dict(self) -> dict[str, Any]:
        return self.options.model_dump()


@contextmanager
def tokens_of_batch(model: nn.Module, columns: Sequence[Features]) -> Iterator[None]:
    """A context in which an encoder on a CPU looks tokens up in tables of those of the batch alone.

    Otherwise each pass has a gradient of the whole table: 47 MB to fill and to add for BERT's vocabulary. The gradients
    are the same to the last bit. In the context the model cannot be saved or copied, and embeddings must not be
    computed again after it.
    """
    from sentence_transformers import SentenceTransformer

    from bixse.encoders.loading.backbones import backbones

    inner = getattr(model, "module", model)  # of a distributed wrapper
    ids = [part["input_ids"].flatten().long() for part in columns if "input_ids" in part]
    # a GPU has few passes, and would wait for the number of tokens
    is_useful = ids and ids[0].device.type == "cpu" and torch.is_grad_enabled() and not is_sharded(model)
    tables: dict[Any, None] = {}  # routes may share one
    for part in backbones(inner) if is_useful and isinstance(inner, SentenceTransformer) else ():
        with suppress(NotImplementedError, AttributeError):  # of models that do not name theirs
            tables[part.auto_model.get_input_embeddings()] = None
    with ExitStack() as stack:
        for table in tables:
            if not isinstance(table, nn.Embedding) or list(table._parameters) != ["weight"]:
                continue
            if table.weight.requires_grad and not (table.max_norm or table.sparse or table.scale_grad_by_freq):
                stack.enter_context(_smaller_table(table, torch.cat(ids)))
        yield


@contextmanager
def _smaller_table(table: nn.Embedding, ids: Tensor) -> Iterator[None]:
    """A context in which a table has the rows of these ids alone; the whole table is back when others are asked for."""
    weight: Any = table.weight
    padding = table.padding_idx
    distinct = torch.cat([ids, ids.new_tensor([] if padding is None else [padding])]).unique()
    distinct = distinct[distinct < len(weight)]  # routes have vocabularies of their own
    rows = ids.new_full((len(weight),), len(distinct)).index_copy_(0, distinct, torch.arange(len(distinct)))

    def restore() -> None:
        table.__dict__.pop("weight", None)
        table._parameters["weight"] = weight
        table.padding_idx = padding

    def read(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor] | None:
        if "weight" not in table.__dict__:
            return None
        if given and bool((known := rows[given[0]]).lt(len(distinct)).all()):
            return (known,)
        restore()
        return None

    hook = table.register_forward_pre_hook(read)
    try:
        part = weight.index_select(0, distinct)
        del table._parameters["weight"]
        # PyTorch adds nothing to the gradient of the row of padding
        table.padding_idx = None if padding is None else int(rows[padding])
        table.__dict__["weight"] = part
        yield
    finally:
        restore()
        hook.remove()


def _check_embeds(model: object) -> None:
    """Refuse models that do not embed texts; a bare module is accepted, for arithmetic on embeddings alone."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.model import BaseModel
    from transformers import PreTrainedModel

    other = isinstance(model, (BaseModel, PreTrainedModel)) and not isinstance(model, SentenceTransformer)
    if other or not isinstance(model, nn.Module):
        raise ModelError(
            f"loss: got {shorten(model) if isinstance(model, str) else type(model).__name__} as the model; expected a "
            "SentenceTransformer, which embeds query and document each by itself; fix: pass "
            "build_encoder(NAME_OR_FOLDER) or SentenceTransformer(NAME_OR_FOLDER) (a CrossEncoder reads both texts "
            "together and has no embeddings: `bixse grade` takes it as a judge)"
        )


def table_of_labels(labels: Tensor, rows: int, columns: int) -> Tensor:
    """Return (B,) or (B, K) labels of B rows and K document columns as (B, K); raise InputError for others."""
    if labels.ndim == 0 or len(labels) != rows or labels.numel() != rows * columns:
        raise InputError(
            f"loss: got labels of shape {tuple(labels.shape)} for {rows} queries and {columns} document columns; "
            "expected a relevance for each document; fix: one label per document column"
        )
    return labels.reshape(rows, columns)


def _unit_length(vectors: Tensor) -> Tensor:
    """Return (N, D) rows of length 1, at least float32."""
    return normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=-1)


def tokens_without_padding(features: Features) -> Tensor:
    """Return (N, T) tokens: each text from position 0 on, then -1, whichever side was padded."""
    tokens: Tensor = features["input_ids"]
    mask, offsets = features.get("attention_mask"), features.get("offsets")
    if isinstance(offsets, Tensor) and tokens.ndim == 1:
        texts = [*tokens.tensor_split(offsets[1:].cpu())] if len(offsets) else []
        return pad_sequence(texts, batch_first=True, padding_value=-1) if texts else tokens.reshape(0, 1)
    if not isinstance(mask, Tensor) or mask.shape != tokens.shape:
        return tokens
    tokens_first = torch.argsort(mask.bool().logical_not().long(), dim=1, stable=True)
    return torch.where(mask.bool(), tokens, -1).gather(1, tokens_first)


def identical_texts(features: Features) -> tuple[Tensor, Tensor]:
    """Return (U,) first row per distinct text, in order of appearance, and (N,) the index of each row's text in it."""
    _, inverse = torch.unique(tokens_without_padding(features), dim=0, return_inverse=True)
    position = torch.arange(len(inverse), device=inverse.device)
    first = torch.full((int(inverse.max()) + 1 if len(inverse) else 0,), len(inverse), device=inverse.device)
    first = first.scatter_reduce(0, inverse, position, reduce="amin")
    by_appearance = torch.argsort(first)
    return first[by_appearance], torch.argsort(by_appearance)[inverse]


def all_gather_rows(rows: Tensor, number: int) -> Tensor:
    """Return (W * number, D): (n, D) rows of process 0, zeros up to `number` rows, rows of process 1, ..."""
    # all_gather needs equal shapes; processes may have different numbers of rows
    padded = torch.cat([rows, rows.new_zeros(number - len(rows), rows.shape[1])])
    gathered: Tensor = _Gather.apply(padded)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """A gather whose backward sums the gradients of all processes for this process's rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        gathered = rows.new_empty(world_size() * len(rows), rows.shape[1])
        dist.all_gather_into_tensor(gathered, rows.contiguous())  # collectives refuse strided memory
        return gathered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        reduced = gradient.new_empty(len(gradient) // world_size(), gradient.shape[1])
        dist.reduce_scatter_tensor(reduced, gradient.contiguous())
        return reduced


def global_mean_weight(count: Tensor) -> Tensor:
    """Return W * count / (sum of counts), the weight of a mean over `count` rows (or 0) in the global mean."""
    if world_size() == 1:
        return count.new_ones(())
    total = all_reduce_sum(count).clamp_(min=1.0)
    return world_size() * count / total
