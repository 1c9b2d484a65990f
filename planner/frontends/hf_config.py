"""A Hugging Face config.json, as it is, read into an architecture.

Either the parameter count is the published one, or the error says which part of the model is not described yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from planner.errors import PlannerError, listed
from planner.frontends.families import classic, llama_like, mixtures, translators
from planner.frontends.families.common import Family
from planner.frontends.families.config import DESCRIBE, Config
from planner.frontends.families.refused import ARCHITECTURES, MULTIMODAL, REFUSED
from planner.frontends.fields import typed
from planner.graph.architecture import Architecture
from planner.units import Json

MAX_BYTES = 16_000_000
NEEDED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)
"""What a plain decoder of an unknown family must state before it can be read as Llama."""
TOWERS = ("vision_config", "audio_config", "vision_tower", "mm_vision_tower", "speech_config")

FAMILIES: dict[str, tuple[Family, tuple[str, ...]]] = {
    **llama_like.FAMILIES,
    **classic.FAMILIES,
    **mixtures.FAMILIES,
    **translators.FAMILIES,
}
_BY_TYPE = {name.lower(): family for name, (family, _) in FAMILIES.items()}
_BY_CLASS = {
    name.lower(): family for family, names in FAMILIES.values() for name in names
}  # the case of these names varies between copies


def read_config(
    source: Path | str | Mapping[str, Json],
    *,
    overrides: Mapping[str, Json] | None = None,
    name: str | None = None,
) -> Architecture:
    """Read a configuration.

    Args:
        source: a config.json, a folder that holds one, or its parsed content.
        overrides: keys that replace those of the file, null removing one. Two are ours: ``model_type=llama`` reads
            an unknown model as a family, ``part=text`` reads the language part of a model with further towers.
            Values may be text as it was typed (``"8"``).
        name: the model's name; otherwise the file's or folder's.

    Raises:
        PlannerError: M02 a fact is missing, M03 a part is not described yet, M04 a value cannot be, M05 no file
            that can be read.
    """
    if isinstance(source, Mapping):
        path, data = "the configuration", dict(source)
        known = data.get("_name_or_path") or data.get("model_type")
        title = str(known).rstrip("/").rpartition("/")[2] if isinstance(known, str) else "model"
    else:
        file = _locate(Path(source))
        path, data = str(file), _load(file)
        title = file.stem if file.name != "config.json" else file.resolve().parent.name
    given = {key: typed(value) for key, value in (overrides or {}).items()}
    part = given.pop("part", None)
    if part not in (None, "text"):
        raise PlannerError.of("M04", f"--set part={part}: the only part that can be read is text.")
    forced = given.get("model_type") is not None
    data, note = _language_part(data, path, given, wanted=part == "text", forced=forced)
    family = _family(data, path, forced=forced)
    config = Config(data, path, [key for key in given if key != "model_type"])
    arch = family(config)
    config.finish()
    origin = f"{Path(path).name if path != 'the configuration' else path}{note}"
    return replace(arch, name=(name or title) + (" (text part)" if note else ""), source=origin)


# -- files -----------------------------------------------------------------------------------------


def _locate(path: Path) -> Path:
    try:
        if path.is_dir():
            file = path / "config.json"
            if not file.is_file():
                what = f"the folder {path} holds no config.json{_instead(path)}."
                raise PlannerError.of("M05", what, DESCRIBE)
            return file
        if path.is_file():
            return path
    except (OSError, ValueError) as error:
        raise PlannerError.of("M05", f"{path!s} cannot be read: {error}.") from None
    raise PlannerError.of("M05", f"there is no file {path}.")


def _instead(folder: Path) -> str:
    """Up to three files of a folder that may describe a model, in words; nothing where there are none."""
    known = (".json", ".onnx", ".yaml", ".yml")
    found = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in known)
    return f", but {', '.join(found[:3])}" if found else ""


def _load(path: Path) -> dict[str, Json]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise PlannerError.of("M05", f"{path} is too large for a config.json.")
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PlannerError.of("M05", f"{path} is not a text file; a config.json is.") from None
    except OSError as error:
        raise PlannerError.of("M05", f"{path} cannot be read: {error.strerror}.") from None
    try:
        data = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        where = f"{path}:{error.lineno}:{error.colno}"
        raise PlannerError.of("M05", f"this is not JSON: {error.msg}.", where=where) from None
    except _RepeatedKeyError as error:
        what = f"key '{error}' is given twice in one object."
        raise PlannerError.of("M05", what, where=str(path)) from None
    except (ValueError, RecursionError) as error:
        first = str(error).splitlines()[0][:100] if str(error) else "too deeply nested"
        raise PlannerError.of(
            "M05", f"this is not JSON that can be read: {first}.", where=str(path)
        ) from None
    if not isinstance(data, dict):
        kind = {list: "a list", str: "a string", type(None): "null"}.get(type(data), "a number")
        raise PlannerError.of("M05", f"{path} holds {kind}; a config.json is an object of keys.")
    return data


class _RepeatedKeyError(Exception):
    """A key twice in one object: which one counts is a guess."""


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RepeatedKeyError(key[:40])
            seen.add(key)
    return out


# -- recognising -----------------------------------------------------------------------------------


def _language_part(
    data: dict[str, Json], path: str, given: Mapping[str, Json], *, wanted: bool, forced: bool
) -> tuple[dict[str, Json], str]:
    """The keys of the decoder, overrides applied; and a note where further towers were left out."""
    _check_names(data, path)
    kind = str(data.get("model_type") or "")
    if not forced:
        _refuse(data, path)
    if isinstance(inside := data.get("thinker_config"), dict):
        data = data | inside
    text = data.get("text_config")
    if text is not None and not isinstance(text, dict):
        raise PlannerError.of("M04", f"{path} gives text_config as something else than an object.")
    towers = [key for key in TOWERS if data.get(key)]
    multimodal = bool(towers) or (kind in MULTIMODAL and not kind.endswith("_text"))
    if multimodal and not wanted:
        raise PlannerError.of(
            "M03",
            f"{path} is a model with a vision or audio tower ({towers[0] if towers else kind}):"
            " such towers are not described yet.",
            "The language part alone can be read, the tower's parameters left out: --set part=text",
        )
    inner = dict(data)
    if isinstance(text, dict):
        inner = dict(text)
        inner.setdefault("tie_word_embeddings", data.get("tie_word_embeddings"))
        _check_names(inner, path)
    if multimodal:
        inner = {key: value for key, value in inner.items() if key not in TOWERS}
        inner.pop("architectures", None)
    own = str(inner.get("model_type") or kind)
    inner["model_type"] = MULTIMODAL.get(own) or own or None
    inner.update(given)
    if not forced:
        _refuse(inner, path)
    return inner, "; towers beside the language part left out" if multimodal else ""


def _check_names(data: Mapping[str, Json], path: str) -> None:
    kind, classes = data.get("model_type"), data.get("architectures")
    if kind is not None and not isinstance(kind, str):
        raise PlannerError.of("M04", f"{path} gives model_type as something else than a string.")
    if classes is not None and not (
        isinstance(classes, list) and all(isinstance(item, str) for item in classes)
    ):
        raise PlannerError.of("M04", f"{path} gives architectures as no list of strings.")


def _refuse(data: Mapping[str, Json], path: str) -> None:
    """Refuse by name what is known not to be described."""
    kind, classes = data.get("model_type") or "", data.get("architectures") or [""]
    what = REFUSED.get(kind) or REFUSED.get(ARCHITECTURES.get(classes[0], ""))
    known = str(kind).lower() in _BY_TYPE or classes[0].lower() in _BY_CLASS
    if not what and not known and data.get("is_encoder_decoder") is True:
        what = REFUSED["marian"]
    if not what and not kind and data.get("type_vocab_size"):
        what = REFUSED["bert"]
    if what:
        label = classes[0] or kind or "by its type_vocab_size"
        sentence = f"{path} ({label}) is {what} not described yet."
        raise PlannerError.of("M03", sentence)


def _family(data: Mapping[str, Json], path: str, *, forced: bool) -> Family:
    kind = str(data.get("model_type") or "")
    classes = data.get("architectures") or []
    by_type, by_class = _BY_TYPE.get(kind.lower()), None
    if classes:
        by_class = _BY_CLASS.get(classes[0].lower())
    if forced:
        if by_type is None:
            names = ", ".join(sorted(FAMILIES))
            what = f"--set model_type={kind[:40]}: no such family is known."
            raise PlannerError.of("M02", what, f"Known: {names}.")
        return by_type
    if classes and by_class is None:
        raise _unknown(data, path, f"architecture '{classes[0][:60]}'")
    chosen = by_type or by_class
    if chosen is None:
        raise _unknown(data, path, f"model_type '{kind[:60]}'" if kind else "family")
    return chosen


def _unknown(data: Mapping[str, Json], path: str, label: str) -> PlannerError:
    """The message of error 11: what is missing, and how to give it."""
    missing = [key for key in NEEDED if data.get(key) is None]
    like = "--set model_type=llama"
    if not missing:
        what = f"{path} states what Llama states, but its {label} is not known."
        return PlannerError.of("M02", what, f"If it is built like Llama, say so: {like}", DESCRIBE)
    heads = data.get("num_attention_heads")
    groups = 8 if not isinstance(heads, int) or heads % 8 == 0 else heads
    gaps = " ".join(f"--set {key}={groups if 'key_value' in key else '...'}" for key in missing)
    what = f"{path} has no {listed(missing, 'and')}, and its {label} is not known."
    it = "it" if len(missing) == 1 else "them"
    return PlannerError.of(
        "M02", what, f"Give {it}: {gaps}", f"and, if it is built like Llama: {like}", DESCRIBE
    )
