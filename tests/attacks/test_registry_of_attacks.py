"""One registry: every attack under one name, with what one should know of it, built from its declaration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from randeigen import attacks
from randeigen.attacks import ATTACKS, POISONS, REGISTRY
from randeigen.errors import BadParameter
from randeigen.registry import parameters


def test_every_attack_has_one_name_and_every_name_one_attack() -> None:
    for known in (ATTACKS, POISONS):
        names = [name for info in known.values() for name in (info.name, *info.aliases)]
        assert len(names) == len(set(names))
        assert all(info.name == name for name, info in known.items())
    assert len(ATTACKS) + len(POISONS) == len(REGISTRY)


@pytest.mark.parametrize("info", REGISTRY, ids=lambda info: f"{info.kind}-{info.name}")
def test_an_entry_says_what_the_attack_is_and_makes_it(info: attacks.AttackInfo) -> None:
    assert info.goal in ("backdoor", "targeted", "untargeted")
    assert info.knows
    assert info.does
    assert info.paper
    build, method = {
        "update": (attacks.build, "craft"),
        "client": (attacks.build, "updates"),
        "data": (attacks.build_poison, "poison"),
    }[info.kind]
    for name in (info.name, *info.aliases):
        made = build(name)
        assert callable(getattr(made, method))
        assert made == build(info.name)
    assert "model" not in parameters(info.make)
    assert "weigh" not in parameters(info.make)


def test_earlier_names_still_work() -> None:
    assert attacks.build("krum:halvings=3") == attacks.KrumAttack(3)
    assert attacks.build("trimmed-mean") == attacks.build("tma")
    info = attacks.info_of("krum:halvings=3")
    assert info is not None
    assert info.name == "krum-attack"
    assert attacks.info_of("none") is None


def test_none_is_no_attack() -> None:
    assert attacks.build("none") is None
    assert attacks.build_poison("none") == attacks.Clean()


def test_options_are_checked() -> None:
    assert attacks.build("min-max:along=sign") == attacks.MinMax("sign")
    with pytest.raises(BadParameter, match="choose one of std, sign, unit"):
        attacks.build("min-max:along=up")


@pytest.mark.parametrize("room", ["updates", "clients", "poisons"])
def test_a_new_attack_is_one_class_in_one_file(room: str, tmp_path: Path) -> None:
    """A module of the room is found and its declaration is in the registry; nothing else is edited."""
    kind = {"updates": "update", "clients": "client", "poisons": "data"}[room]
    (tmp_path / "shift.py").write_text(
        f"""
from dataclasses import dataclass
from randeigen.attacks.base import declare

@declare("shift", "{kind}", "untargeted", knows="nothing", does="shifts", paper="none yet")
@dataclass(frozen=True)
class Shift:
    by: float = 1.0
"""
    )
    build = "build_poison" if room == "poisons" else "build"
    code = f"""
import importlib, sys
import randeigen.attacks
from randeigen.attacks import {room}
{room}.__path__.append({str(tmp_path)!r})  # as if the file lay there
randeigen.attacks.base.DECLARED.clear()
for name in [name for name in sys.modules if name.startswith("randeigen.attacks.") and name.count(".") == 3]:
    del sys.modules[name]
print(importlib.reload(randeigen.attacks).{build}("shift:by=2"))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "Shift(by=2.0)"
