"""Models by name or file: our own descriptions, Hugging Face configurations, the packaged catalogue."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

from planner.errors import Fault, PlannerError, listed, nearest
from planner.frontends.catalog import find_model
from planner.frontends.fields import checked, typed
from planner.frontends.model_schema import KindPart, ModelDescription
from planner.frontends.yaml_source import KeyPath, YamlSource, dump_yaml, load_packaged, load_yaml
from planner.graph.architecture import (
    Architecture,
    Attention,
    Experts,
    LatentAttention,
    Layer,
    Mlp,
    misplaced,
)
from planner.graph.blocks import build_model
from planner.units import Json, show_count

Overrides: TypeAlias = Mapping[str, Json]
"""What ``--set key=value`` gives: keys as in the file read, nested ones with dots."""

MOST_LAYERS = 10_000
TOLERANCE = 0.005
"""Published counts are often rounded to three digits."""
_GRAPHS = {
    ".onnx": "ONNX graphs are",
    ".pt": "exported torch programs are",
    ".pt2": "exported torch programs are",
    ".pth": "torch checkpoints are",
    ".bin": "torch checkpoints are",
    ".safetensors": "weight files are",
    ".gguf": "weight files are",
}
_SHARED = ("attention", "latent_attention", "mlp", "experts")


def read_model(
    spec: str | Path, *, overrides: Overrides | None = None, folders: Sequence[Path] = ()
) -> Architecture:
    """The architecture that a person means.

    Args:
        spec: a name or alias of the catalogue, a config.json, a folder with one, or a description of our own (YAML).
        overrides: keys that replace those of the file.
        folders: the user's own, searched for names before the packaged catalogue.

    Raises:
        PlannerError: M01 an unknown name, M02 to M05 a configuration's faults, U02 and Y01 to Y05 a description's.
    """
    given = {key: typed(value) for key, value in (overrides or {}).items()}
    text, path = str(spec), Path(spec)
    if text.startswith("~/"):
        path = path.expanduser()
    if _looks_like_file(path, text):
        return _read_file(path, given)
    found = find_model(text, folders)
    source = YamlSource(str(found), load_packaged(found)) if not folders else load_yaml(found)
    return read_description(source, given)


def _looks_like_file(path: Path, text: str) -> bool:
    known = path.suffix.lower() in (*_GRAPHS, ".json", ".yaml", ".yml", ".py")
    try:
        if path.exists():
            return known or "/" in text or "\\" in text or not _in_catalogue(text)
    except (OSError, ValueError):
        return True
    return known or text.startswith((".", "/", "~")) or text in ("", "\0")


def _in_catalogue(text: str) -> bool:
    try:
        find_model(text)
    except PlannerError:
        return False
    return True


def _read_file(path: Path, given: Overrides) -> Architecture:
    from planner.frontends.hf_config import read_config
    from planner.frontends.launch.read import is_trainer_file

    suffix = path.suffix.lower()
    if is_trainer_file(path):
        return _of_trainer(path, given)
    if suffix in (".yaml", ".yml"):
        if not path.is_file():
            what = f"{path} is a folder." if path.is_dir() else f"there is no file {path}."
            raise PlannerError.of("M05", what)
        return read_description(load_yaml(path), given)
    if suffix in _GRAPHS or suffix == ".py":
        what = _GRAPHS.get(suffix, "models as Python code are")
        raise PlannerError.of(
            "M03",
            f"{path}: {what} not read yet.",
            "Give the model's config.json or its folder, or describe it: shardwright schema model",
        )
    if _is_plan(path):
        raise PlannerError.of(
            "M05",
            f"{path} is a plan, not a model.",
            f"Look at it:           shardwright explain {path}",
            f"Ask its question:     shardwright plan --like {path}",
        )
    return read_config(path, overrides=given)


def _is_plan(path: Path) -> bool:
    """Whether a file is one of our own answers."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and {"schema_version", "made_by"} <= data.keys()


def _of_trainer(path: Path, given: Overrides) -> Architecture:
    """The model that a trainer's configuration describes, or names."""
    from planner.frontends.launch.read import read_trainer_file

    found = read_trainer_file(path)
    if given:
        keys = ", ".join(given)
        raise PlannerError.of(
            "M05", f"{path} is a trainer's file, whose keys --set cannot replace: {keys}."
        )
    if found.architecture is not None:
        return found.architecture
    if found.model is None:
        what = f"{path} ({found.program}) does not say which model it trains."
        raise PlannerError.of("M02", what, "Name it: shardwright check FILE --model llama-3-8b")
    return read_model(found.model)


# -- descriptions ----------------------------------------------------------------------------------


def read_description(source: YamlSource, given: Overrides | None = None) -> Architecture:
    """An architecture from one of our own descriptions, with every fault of it."""
    data = _overridden(source, given or {})
    if not isinstance(data, dict):
        raise PlannerError.of("U02", "a model description must be a mapping.", where=source.where())
    described = checked(source, ModelDescription, "model", data=_counted_layers(source, data))
    kinds = _kinds(source, described)
    arch = Architecture(
        kinds=kinds,
        layers=_order(source, described, [kind.name for kind in kinds]),
        **{key: getattr(described, key) for key in _plain_fields()},
    )
    if wrong := misplaced(arch):
        raise PlannerError.of("M04", f"{arch.name}: {wrong}.", where=source.where(("layers",)))
    if described.params is not None and not given:
        _check_count(source, arch, described.params)
    return arch


def _counted_layers(source: YamlSource, data: dict[str, Json]) -> dict[str, Json]:
    """Layers given as a number alone mean so many of the only kind."""
    number = data.get("layers")
    if isinstance(number, bool) or not isinstance(number, int | float):
        return data
    if number not in range(1, MOST_LAYERS + 1):
        what = f"layers must be a whole number from 1 to {MOST_LAYERS}, or a list of runs."
        raise PlannerError.of("U02", what, where=source.where(("layers",), value=True))
    return {**data, "layers": [{"of": [], "times": int(number)}]}


OTHER = ("kinds", "layers", "assumed")
"""Fields of an architecture that a description has in another form, or not at all."""


def _plain_fields() -> tuple[str, ...]:
    return tuple(f.name for f in fields(Architecture) if f.name not in OTHER)


def _overridden(source: YamlSource, given: Overrides) -> Json:
    if not given:
        return source.data
    data = copy.deepcopy(source.data)
    for key, value in given.items():
        *outer, last = key.split(".")
        if not outer and last not in ModelDescription.model_fields:
            close = get_close_matches(last, list(ModelDescription.model_fields), n=1, cutoff=0.5)
            keys = "Keys: shardwright schema model. Those of a part: attention.kv_heads=8"
            fix = f"Nearest: {close[0]}." if close else keys
            raise PlannerError.of(
                "Y01", f"--set {key}: a model described here has no such key.", fix
            )
        node = data
        for part in outer:
            node = node.get(part) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise PlannerError.of("M04", f"--set {key}: the description has no {'.'.join(outer)}.")
        if value is None:
            node.pop(last, None)
        else:
            node[last] = value
    return data


def _kinds(source: YamlSource, described: ModelDescription) -> tuple[Layer, ...]:
    if not described.kinds:
        name = "dense" if described.experts is None else "moe"
        return (_layer(source, (), name, described, described),)
    layers: list[Layer] = []
    faults: list[Fault] = []
    for name, part in described.kinds.items():
        at: KeyPath = ("kinds", name)
        try:
            kind = checked(source, KindPart, f"kind '{name}'", data=part, at=at)
            layers.append(_layer(source, at, name, kind, described))
        except PlannerError as error:
            faults += error.faults
    if faults:
        raise PlannerError(*faults)
    return tuple(layers)


def _layer(
    source: YamlSource, at: KeyPath, name: str, kind: KindPart, top: ModelDescription
) -> Layer:
    """One kind of layer, what it leaves out taken from the top of the file."""
    where = source.where(at)
    attention = _either(kind, top, ("attention", "latent_attention"), name, where)
    mlp = _either(kind, top, ("mlp", "experts"), name, where)
    parts: dict[str, type] = {
        "attention": Attention,
        "latent_attention": LatentAttention,
        "mlp": Mlp,
        "experts": Experts,
    }
    built = [parts[key](**value) for key, value in (attention, mlp)]
    _sane(built, name, where)
    flags = {flag for k in (top, kind) for flag in k.model_fields_set}
    own = {flag: getattr(kind if flag in kind.model_fields_set else top, flag) for flag in flags}
    keep = ("post_norms", "parallel", "parallel_norms", "encodes", "cross")
    return Layer(
        name=name,
        attention=built[0],
        mlp=built[1],
        **{flag: own[flag] for flag in keep if flag in own},
    )


def _either(
    kind: KindPart, top: ModelDescription, keys: tuple[str, str], name: str, where: str
) -> tuple[str, dict[str, Json]]:
    for place in (kind, top):
        found = [(key, getattr(place, key)) for key in keys if getattr(place, key) is not None]
        if len(found) == 1:
            return found[0][0], found[0][1].model_dump()
        if len(found) == 2:
            what = f"'{keys[0]}' and '{keys[1]}' are both given; a layer has one of the two."
            raise PlannerError.of("Y05", what, where=where)
    what = f"layers of kind '{name}' have neither '{keys[0]}' nor '{keys[1]}'."
    raise PlannerError.of("Y04", what, where=where)


def _sane(parts: Sequence[Json], name: str, where: str) -> None:
    for part in parts:
        if isinstance(part, Attention) and part.heads % part.kv_heads:
            what = f"kind '{name}': {part.kv_heads} kv_heads do not divide {part.heads} heads."
            raise PlannerError.of("M04", what, where=where)
        if isinstance(part, Experts) and part.top_k > part.count:
            what = f"kind '{name}': a token cannot meet {part.top_k} of {part.count} experts."
            raise PlannerError.of("M04", what, where=where)


def _order(
    source: YamlSource, described: ModelDescription, names: Sequence[str]
) -> tuple[int, ...]:
    order: list[int] = []
    for index, run in enumerate(described.layers):
        of = run.of or (names if len(names) == 1 else [])
        where = source.where(("layers", index), value=True)
        if not of:
            what = f"layers must say which kinds they are of: {listed(names)}."
            raise PlannerError.of("Y04", what, where=where)
        for name in of:
            if name not in names:
                close = nearest(name, names, 1)[0]
                what = f"no kind of layer is named '{name}'. Did you mean '{close}'?"
                raise PlannerError.of("Y01", what, where=where)
        if len(order) + len(of) * run.times > MOST_LAYERS:
            raise PlannerError.of("U02", f"layers must be at most {MOST_LAYERS}.", where=where)
        order += [names.index(name) for name in of] * run.times
    if not order:
        raise PlannerError.of("U02", "layers must be at least 1.", where=source.where(("layers",)))
    return tuple(order)


def _check_count(source: YamlSource, arch: Architecture, published: float) -> None:
    counted = build_model(arch, 1).num_params
    if abs(counted - published) > TOLERANCE * published:
        what = (
            f"params says {show_count(published)}, but this description has"
            f" {show_count(counted)} ({counted:,})."
        )
        where = source.where(("params",), value=True)
        fix = "Find the layer that differs, or leave params out."
        raise PlannerError(Fault("M04", what, (fix,), where))


# -- writing ---------------------------------------------------------------------------------------


def dump_model(arch: Architecture) -> str:
    """The architecture as a description that reads back equal."""
    plain = {f.name: f.default for f in fields(Architecture)}
    data: dict[str, Json] = {}
    for key in _plain_fields():
        value = getattr(arch, key)
        if value != plain[key]:
            data[key] = value
    data["kinds"] = {kind.name: _dump_layer(kind) for kind in arch.kinds}
    data["layers"] = _runs([arch.kinds[index].name for index in arch.layers])
    only = "moe" if isinstance(arch.kinds[0].mlp, Experts) else "dense"
    if len(arch.kinds) == 1 and arch.kinds[0].name == only:
        data |= data.pop("kinds")[only]
        data["layers"] = len(arch.layers)
    return dump_yaml(data)


def _dump_layer(layer: Layer) -> dict[str, Json]:
    attention = "latent_attention" if isinstance(layer.attention, LatentAttention) else "attention"
    mlp = "experts" if isinstance(layer.mlp, Experts) else "mlp"
    flags = {f.name: f.default for f in fields(Layer) if f.name not in ("name", "attention", "mlp")}
    own = {flag: getattr(layer, flag) for flag in flags if getattr(layer, flag) != flags[flag]}
    return {attention: _dump_part(layer.attention), mlp: _dump_part(layer.mlp), **own}


def _dump_part(part: Attention | LatentAttention | Mlp | Experts) -> dict[str, Json]:
    defaults = {f.name: f.default for f in fields(part)}
    return {key: value for key, value in asdict(part).items() if value != defaults[key]}


def _runs(names: Sequence[str]) -> list[dict[str, Json]]:
    """Layers as runs: a repeated pattern where there is one, else equal neighbours."""
    for period in range(2, 9):
        times, rest = divmod(len(names), period)
        pattern = list(names[:period])
        if times > 1 and len(set(pattern)) > 1 and pattern * times == list(names[: period * times]):
            tail = list(names[period * times :])
            if rest == 0 or tail == pattern[:rest]:
                runs: list[dict[str, Json]] = [{"of": pattern, "times": times}]
                return [*runs, {"of": tail, "times": 1}] if tail else runs
    return [{"of": name, "times": len(list(group))} for name, group in groupby(names)]
