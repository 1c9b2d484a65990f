"""A small hand for writing blocks: tensors and operators by name, in order of execution."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.graph.architecture import NormKind
from planner.graph.operator import Block, DimName, Operator, Tensor, TensorKind, Use

TOKENS: tuple[DimName, ...] = ("batch", "seq")
STREAM: tuple[DimName, ...] = (*TOKENS, "embed")
SOURCE: tuple[DimName, ...] = ("batch", "source", "embed")
"""What an encoder made, as a decoder reads it."""


@dataclass(slots=True)
class Builder:
    """Collects the tensors and operators of one block."""

    name: str
    sizes: dict[DimName, float]
    norm_kind: NormKind
    tensors: dict[str, Tensor] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)
    tied: set[str] = field(default_factory=set)
    per_token: dict[DimName, float] = field(default_factory=dict)

    def tensor(self, name: str, *dims: DimName, kind: TensorKind = "activation") -> str:
        """Declare a tensor and return its name."""
        self.tensors[name] = Tensor(name, dims, kind)
        return name

    def use(self, name: str, **renamed: DimName) -> Use:
        """A tensor as an operator reads it, some dims under other names."""
        return Use(name, tuple(renamed.get(dim, dim) for dim in self.tensors[name].dims))

    def add(self, operator: Operator) -> None:
        self.operators.append(operator)

    def linear(
        self,
        name: str,
        source: str,
        over: tuple[DimName, ...],
        into: tuple[DimName, ...],
        target: str,
        *,
        bias: bool = False,
        tags: frozenset[str] = frozenset(),
        expert: bool = False,
        tied: str = "",
    ) -> str:
        """A product of ``source`` with a weight over the dims ``over`` (summed) and ``into`` (new).

        A bias is a weight over ``into`` alone. ``expert`` weights have ``experts`` in front.
        """
        lead: tuple[DimName, ...] = ("experts",) if expert else ()
        rest = tuple(dim for dim in self.tensors[source].dims if dim not in over)
        weight = tied or f"{self.name}.{name}.weight"
        self.tensor(weight, *lead, *over, *into, kind="weight")
        weights: tuple[str, ...] = (weight,)
        if bias:
            weights = (weight, self.tensor(f"{self.name}.{name}.bias", *lead, *into, kind="weight"))
        self.tensor(target, *rest, *into)
        self.add(
            Operator(
                name=name,
                kind="matmul",
                dims=(*rest, *over, *into),
                reads=(self.use(source),),
                writes=(target,),
                weights=weights,
                flops=2.0,
                saves=(source,),
                tags=tags,
                view="expert" if expert else "dense",
            )
        )
        return target

    def memory(
        self,
        name: str,
        sources: tuple[str, ...],
        target: str,
        dims: tuple[DimName, ...],
        *,
        saves: tuple[str, ...] = (),
        tags: frozenset[str] = frozenset(),
        kind: TensorKind = "activation",
        weights: tuple[str, ...] = (),
        whole: frozenset[DimName] = frozenset(),
    ) -> str:
        """A pass over memory: reads the sources, writes one target."""
        if target not in self.tensors:
            self.tensor(target, *dims, kind=kind)
        space = dict.fromkeys(d for n in (*sources, target) for d in self.tensors[n].dims)
        view = "expert" if "experts" in space and "capacity" in space else "dense"
        self.add(
            Operator(
                name=name,
                kind="memory",
                dims=tuple(space),
                reads=tuple(self.use(source) for source in sources),
                writes=(target,),
                weights=weights,
                saves=saves,
                tags=tags,
                whole=whole,
                view="expert" if view == "expert" else "dense",
            )
        )
        return target

    def norm(
        self,
        name: str,
        source: str,
        target: str,
        over: tuple[DimName, ...] = ("embed",),
        weight_dims: tuple[DimName, ...] | None = None,
    ) -> str:
        """A normalisation over ``over``, which no axis may split; keeps its input."""
        per = over if weight_dims is None else weight_dims
        count = {"rms": 1, "layer": 2, "layer-no-bias": 1, "none": 0}[self.norm_kind]
        weights = tuple(
            self.tensor(f"{self.name}.{name}.{part}", *per, kind="weight")
            for part in ("weight", "bias")[:count]
        )
        return self.memory(
            name,
            (source,),
            target,
            self.tensors[source].dims,
            saves=(source,),
            tags=frozenset({"norm", "rms_norm"} if self.norm_kind == "rms" else {"norm"}),
            weights=weights,
            whole=frozenset(over),
        )

    def dropout(self, name: str, source: str, target: str) -> str:
        """Dropout keeps a one-byte mask."""
        dims = self.tensors[source].dims
        mask = self.tensor(f"{name}.mask", *dims, kind="mask")
        self.tensor(target, *dims)
        self.add(
            Operator(
                name=name,
                kind="memory",
                dims=dims,
                reads=(self.use(source),),
                writes=(target, mask),
                backward=1.0,
                saves=(mask,),
                tags=frozenset({"residual_dropout" if "embed" in dims else "core"}),
            )
        )
        return target

    def finish(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Block:
        """The block, with the sizes of the dims that it really has."""
        used = {dim for t in self.tensors.values() for dim in t.dims}
        used |= {dim for op in self.operators for dim in op.dims}
        return Block(
            name=self.name,
            sizes={dim: size for dim, size in self.sizes.items() if dim in used},
            tensors=self.tensors,
            operators=tuple(self.operators),
            inputs=inputs,
            outputs=outputs,
            tied=frozenset(self.tied),
            per_token=self.per_token,
        )
