"""What can be refused of a federation before anything runs, and what lies where its record is to go."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import torch

import randeigen
from randeigen import attacks
from randeigen.lab import servers
from randeigen.lab.config import FederatedConfig
from randeigen.lab.federated import check_inputs
from randeigen.lab.partition import check_enough
from randeigen.lab.record_files import check_folder, earlier_record, federation_words
from randeigen.lab.results import FederatedRecord
from randeigen.lab.stacked_model import StackedModel
from randeigen.lab.tasks import Task
from randeigen.partition import WHOLE, Leaves, Partition
from randeigen.parts import check_rule
from randeigen.registry import build_rule
from randeigen.rules import RULES, rule_class

MANY_COLUMNS = 1000  # more than any rule takes that takes few


def check_federation(config: FederatedConfig, task: Task) -> None:
    """Refuse names that do not exist, or do not go together, without training anything.

    `config` is resolved. Raises BadParameter, as the run would once it is there.
    """
    attacks.build(config.attack)
    check_inputs(config.attack, task)
    servers.build(config.server)
    check_enough(len(task.train[1]), config.clients)
    rule = build_rule(config.rule, config.feared)
    rule.assumed_corrupt(config.participating)  # some refuse so few rows, or so many
    name = config.rule.rpartition("+")[2].partition(":")[0]
    if name in RULES and rule_class(name).only_small:  # one of these takes few columns: rows of zeros show it
        n, d = config.participating, sum(math.prod(shape) for _, shape in _leaves(task))
        randeigen.aggregate(np.zeros((n, min(d, MANY_COLUMNS)), np.float32), rule=rule, seed=0)
    if config.parts == WHOLE:
        return
    leaves = _leaves(task)
    Partition.of(config.parts, leaves, sum(math.prod(shape) for _, shape in leaves))
    check_rule(rule)


def earlier_records(
    configs: Iterable[FederatedConfig], folder: Path
) -> dict[FederatedConfig, tuple[FederatedRecord, Path]]:
    """The records that earlier calls left of these runs, with their files.

    Raises BadFile for a file that a run would overwrite, or that does not hold all of its rounds: somebody
    wrote or edited it; and, where one is missing, for a folder that nothing can be written to.
    """
    earlier, configs = {}, list(configs)
    for config in configs:
        if match := earlier_record(folder, FederatedRecord, config, federation_words(config)):
            earlier[config] = match[0], folder / f"{match[1]}.json"
    if any(config not in earlier for config in configs):
        check_folder(folder)
    return earlier


@cache
def _leaves(task: Task) -> Leaves:
    """Names and shapes of what is trained; torch's random numbers stay where they are."""
    with torch.random.fork_rng(devices=[]):
        return StackedModel(task.model()).leaves
