"""Names carry parameters everywhere, and a record can be rerun from its own words."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from randeigen import registry
from randeigen.errors import BadParameter

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from randeigen.attacks import MRA, Subpopulation
from randeigen.lab import (
    Adam,
    CentralizedConfig,
    FederatedConfig,
    FederatedRecord,
    Federation,
    prepare,
    run,
    servers,
    tasks,
    train,
)
from randeigen.lab.config import CentralizedStream, FederatedStream
from randeigen.lab.study_grid import StudyStream

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK: dict[str, Any] = {"clients": 10, "rounds": 2, "epochs": 1}


def without_times(text: str) -> Any:
    content = json.loads(text)
    for one in content["history"]:
        del one["seconds"]
    return content


class TestConfigurations:
    def test_a_federation_takes_names_with_parameters(self) -> None:
        spec = FederatedConfig(rule="nnm+krum", attack="mra:boost=5", server="adam:eta=0.01", **QUICK)
        federation = Federation.of(spec)
        assert federation.attack == MRA(boost=5.0)
        assert federation.server == Adam(eta=0.01)
        assert type(federation.rule) is type(registry.build_rule("nnm+krum", 0.2))
        assert run(spec).spec == federation.spec

    def test_centralized_training_takes_names_with_parameters(self) -> None:
        spec = CentralizedConfig("digits", "subpopulation:alpha=1", "none", eps=0.1, epochs=1)
        named, given = prepare(spec), prepare(spec, attack=Subpopulation(alpha=1.0))
        assert bool((named.train.images == given.train.images).all())
        assert int(named.train.poison.sum()) > 0

    @pytest.mark.parametrize("rule", ["chunked-filtering", "nnm+chunked-no-regret"])
    def test_a_rule_that_needs_the_honest_variance_gets_the_tasks(self, rule: str) -> None:
        sigma = tasks.build("digits").sigma
        federation = Federation.of(FederatedConfig(rule=rule, **QUICK))
        assert federation.spec.rule == f"{rule}:sigma={sigma!r}"
        given = Federation.of(FederatedConfig(rule=f"{rule}:sigma=0.5", **QUICK))
        assert given.spec.rule == f"{rule}:sigma=0.5"

    @pytest.mark.parametrize(
        "names",
        [
            {"rule": "nnm+krum", "attack": "mra:boost=5", "server": "adam:eta=0.01"},
            {"rule": "chunked-filtering", "attack": "hidra:tensors=false", "sample": 0.7, "redraw": True},
            {"rule": "trimmed-mean", "attack": "krum", "partition": "dirichlet", "calm": 1, "seed": 3},
            {},
        ],
        ids=lambda names: names.get("rule", "defaults"),
    )
    def test_a_federated_record_is_rerun_from_its_own_spec(
        self, names: dict[str, Any], tmp_path: Path
    ) -> None:
        path = tmp_path / "record.json"
        run(FederatedConfig(**QUICK, **names)).write(path)
        with path.open() as file:
            again = run(FederatedConfig(**json.load(file)["spec"]))
        assert without_times(again.as_json()) == without_times(path.read_text())
        assert again.spec == FederatedRecord.read(path).spec

    @pytest.mark.parametrize("defence", ["suspects", "backward"])
    def test_a_centralized_record_is_rerun_from_its_own_spec(self, defence: str) -> None:
        record = train(CentralizedConfig("digits", "trigger:share=0.04", defence, epochs=1))
        again = train(CentralizedConfig(**asdict(record.spec)))
        assert without_times(again.as_json()) == without_times(record.as_json())


class TestNames:
    @pytest.mark.parametrize(
        ("spec", "said"),
        [
            ({"rule": "krumm"}, "did you mean 'krum'"),
            ({"rule": "nnn+krum"}, "did you mean 'nnm'"),
            ({"attack": "hydra"}, "did you mean 'hidra'"),
            ({"attack": "mra:bost=2"}, "it takes boost="),
            ({"server": "adm"}, "did you mean 'adam'"),
            ({"server": "adam:eta=fast"}, "is not a value"),
            ({"task": "digit"}, "did you mean 'digits'"),
        ],
    )
    def test_a_wrong_name_is_answered_with_the_nearest(self, spec: dict[str, Any], said: str) -> None:
        with pytest.raises(BadParameter, match=said):
            run(FederatedConfig(**spec))

    def test_centralized_training_refuses_attacks_on_federations(self) -> None:
        with pytest.raises(BadParameter, match="there is no attack 'hidra'"):
            train(CentralizedConfig("digits", "hidra"))

    def test_a_sum_of_stages_is_not_an_exponent(self) -> None:
        assert registry.with_sigma("nnm+filtering:gamma=1e+20", 0.5) == "nnm+filtering:gamma=1e+20"
        assert registry.build_rule("nnm+filtering:gamma=1e+20", 0.2) is not None

    def test_aliases_name_what_is_known(self) -> None:
        @dataclass(frozen=True)
        class Thing:
            size: float = 1.0

        assert registry.parse("old:size=2", {"new": Thing}, "thing", aliases={"old": "new"}) == Thing(2.0)

    def test_servers_are_built_by_name(self) -> None:
        assert servers.build("adam:eta=0.5,b1=0.8") == Adam(eta=0.5, b1=0.8)


def test_the_numbers_of_random_streams_never_change() -> None:
    assert [*FederatedStream] == [0, 1, 2, 3, 4, 5]
    assert [*CentralizedStream] == [0, 1, 2, 3, 4]
    assert (StudyStream.REHEARSAL, StudyStream.CENTRE) == (1, 2)
    assert FederatedStream.RULE == 5
    assert CentralizedStream.BATCH_ORDER == 4
