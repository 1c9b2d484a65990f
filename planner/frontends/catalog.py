"""What is known by name: packaged chips, clusters and models.

A file's name is the canonical name of what it describes, and its one ``aliases: [...]`` line lists other
spellings; so a name is found without parsing any YAML. Folders of the user's own, laid out alike, may come first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from planner.errors import PlannerError, nearest

_ROOM = Path(__file__).resolve().parents[1]
_ALIASES = re.compile(r"^aliases: *\[([^\]]*)\]", re.MULTILINE)
_FOLDERS = {
    "chip": ("hardware_profiles", "chips"),
    "cluster": ("hardware_profiles", "clusters"),
    "model": ("models", ""),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that is known by name."""

    name: str
    """Canonical name: the file's name without suffix."""
    path: Path
    """The file that describes it."""
    aliases: tuple[str, ...]
    """Other spellings of the name."""


def data_folder(name: str) -> Path:
    """``models`` or ``hardware_profiles``: inside the installed package, else beside it in a checkout."""
    packaged = _ROOM / "_data" / name
    return packaged if packaged.is_dir() else _ROOM.parent / name


def entries(kind: str, folders: Sequence[Path] = ()) -> list[Entry]:
    """Everything of a kind by name, sorted; what stands in earlier folders hides what stands in later ones.

    Args:
        kind: ``chip``, ``cluster`` or ``model``.
        folders: the user's own, each with ``hardware_profiles/`` and ``models/`` as the packaged data have.
    """
    return sorted(_known(kind, tuple(folders)).values(), key=lambda entry: entry.name)


def find(kind: str, name: str, folders: Sequence[Path] = ()) -> Path | None:
    """The file that describes what has this name or alias, if any; case and underscores do not matter."""
    wanted = _plain(name)
    entries_in_order = _known(kind, tuple(folders)).values()
    entry = next((e for e in entries_in_order if wanted in (_plain(e.name), *e.aliases)), None)
    return entry.path if entry else None


def nearest_names(
    name: str, kinds: Sequence[str], folders: Sequence[Path] = (), count: int = 3
) -> list[str]:
    """The canonical names whose own or other spellings come closest to a misspelt one, best first."""
    known = [entry for kind in kinds for entry in entries(kind, folders)]
    canonical = {alias: entry.name for entry in known for alias in entry.aliases}
    canonical |= {entry.name: entry.name for entry in known}
    close = nearest(name, canonical, 4 * count)
    return list(dict.fromkeys(canonical[spelling] for spelling in close))[:count]


def find_model(name: str, folders: Sequence[Path] = ()) -> Path:
    """The file of a model by name.

    Raises:
        PlannerError: M01 with the nearest names.
    """
    path = find("model", name, folders)
    if path is None:
        close = ", ".join(nearest_names(name, ["model"], folders)) or "none at all"
        raise PlannerError.of(
            "M01",
            f"no model named '{name}'. Nearest: {close}.",
            "A folder or file with a config.json works too. All: shardwright list models",
        )
    return path


def find_chip(name: str, folders: Sequence[Path] = (), *, asked: str = "", where: str = "") -> Path:
    """The file of a chip by name.

    Args:
        name: canonical name or alias.
        folders: the user's own profiles.
        asked: what the user wrote that contains the name, such as ``--cluster h100sxm:256``.
        where: ``file:line:column`` where the name stands, if in a file.

    Raises:
        PlannerError: C01 with the nearest names.
    """
    path = find("chip", name, folders)
    if path is None:
        raise unknown_hardware("chip", name, folders, asked=asked, where=where)
    return path


def unknown_hardware(
    kind: str, name: str, folders: Sequence[Path] = (), *, asked: str = "", where: str = ""
) -> PlannerError:
    """The error for a name that no chip (or, for kind ``cluster``, neither a chip nor a cluster) has."""
    close = nearest_names(name, ["chip"] if kind == "chip" else ["cluster", "chip"], folders)
    chip = nearest_names(name, ["chip"], folders, 1)
    return PlannerError.of(
        "C01",
        f"no {kind} named '{name}'{f' in {asked}' if asked else ''}. Nearest: {', '.join(close)}.",
        "For a chip we do not know, start from one we do:",
        f"shardwright show {''.join(chip)} > my.yaml",
        where=where,
    )


@cache
def _known(kind: str, folders: tuple[Path, ...]) -> dict[str, Entry]:
    top, inner = _FOLDERS[kind]
    known: dict[str, Entry] = {}
    for folder in (*(folder / top for folder in folders), data_folder(top)):
        for entry in _read(folder / inner, deep=not inner):
            known.setdefault(entry.name, entry)
    return known


def _read(folder: Path, *, deep: bool) -> Iterator[Entry]:
    for path in sorted(folder.rglob("*.yaml") if deep else folder.glob("*.yaml")):
        found = _ALIASES.search(path.read_text(encoding="utf-8", errors="replace"))
        names = (found[1].split(",")) if found else ()
        yield Entry(path.stem, path, tuple(_plain(name) for name in names if name.strip()))


def _plain(name: str) -> str:
    return name.strip().strip("'\"").lower().replace("_", "-")
