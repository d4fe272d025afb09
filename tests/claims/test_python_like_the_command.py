"""Python says what the command says: rules by name, functions as rules, results that can be read."""

from __future__ import annotations

import inspect
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

import randeigen
from randeigen import rules
from randeigen.errors import BadFraction, BadParameter
from randeigen.registry import build_rule


def cloud(n: int = 20, d: int = 50) -> np.ndarray:
    rows = np.random.default_rng(0).standard_normal((n, d))
    rows[:2] += 9
    return rows


@pytest.mark.parametrize("name", ["krum", "nnm+krum", "filtering:gamma=0.5", "median", "randeigen"])
@pytest.mark.parametrize("told", [{"eps": 0.1}, {"f": 2}])
def test_a_rule_by_its_name_is_the_rule(name: str, told: dict[str, Any]) -> None:
    by_name = randeigen.aggregate(cloud(), rule=name, seed=3, **told)
    by_value = randeigen.aggregate(cloud(), rule=build_rule(name, told.get("eps"), told.get("f")), seed=3)
    assert np.array_equal(by_name.mean, by_value.mean)
    assert by_name.f == by_value.f == 2


@pytest.mark.parametrize(
    ("told", "error", "words"),
    [
        ({"rule": "krum"}, BadFraction, "exactly one of eps"),
        ({"rule": "krum", "eps": 0.1, "f": 2}, BadFraction, "exactly one of eps"),
        ({"rule": "krumm", "f": 2}, BadParameter, "krum"),
        ({"rule": "nnm+krum:f=3", "f": 2}, BadParameter, "give f=3 beside"),
        ({"rule": rules.Krum, "f": 2}, BadParameter, r"Krum\(eps=0.2\)"),
        ({"rule": rules.NNM(f=1)}, BadParameter, "is not a rule"),
        ({"rule": rules.Krum(f=2), "f": 2}, BadFraction, "exactly one of eps, f and a rule"),
        ({"rule": 3}, BadParameter, "is not a rule"),
        ({}, BadFraction, "or a rule"),
    ],
)
def test_mistakes_say_what_to_give(told: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        randeigen.aggregate(cloud(), **told)


class TestAFunctionOfTheGramMatrix:
    def test_it_is_a_rule_and_sees_the_inner_products(self) -> None:
        rows = cloud()

        def shortest(gram: np.ndarray, f: int) -> np.ndarray:
            assert gram == pytest.approx(rows @ rows.T, rel=1e-6, abs=1e-6)
            keep = np.argsort(np.diag(gram))[: len(gram) - f]
            return np.isin(np.arange(len(gram)), keep) / keep.size

        result = randeigen.aggregate(rows, rule=shortest, f=2)
        assert not result.weights[:2].any()
        assert result.mean == pytest.approx(rows[2:].mean(axis=0))
        assert 0 < result.bias_bound < np.inf

    def test_f_is_optional_for_it_and_for_the_call(self) -> None:
        even = randeigen.aggregate(cloud(), rule=lambda gram: np.full(len(gram), 1 / len(gram)))
        assert even.mean == pytest.approx(cloud().mean(axis=0))
        assert even.f == 0

    def test_unusable_rows_are_not_shown_to_it(self) -> None:
        rows = cloud()
        rows[7] = np.nan
        result = randeigen.aggregate(rows, rule=lambda gram: np.eye(19)[3], f=2)
        assert result.mean == pytest.approx(rows[3])

    @pytest.mark.parametrize(
        "weights",
        [
            -np.ones(20) / 20,
            np.full(20, np.nan),
            np.ones(20),
            np.ones(3) / 3,
            "x",
            None,
            np.eye(20),
            1j * np.ones(20),
        ],
    )
    def test_what_is_no_weights_is_refused(self, weights: Any) -> None:
        with pytest.raises(BadParameter, match="20 numbers from 0 that sum to 1"):
            randeigen.aggregate(cloud(), rule=lambda gram: weights, f=2)

    @pytest.mark.parametrize("function", [lambda gram, f, seed: gram, lambda: 1, lambda gram, *, power: gram])
    def test_a_function_of_other_things_is_refused_before_any_row_is_read(self, function: Any) -> None:
        with pytest.raises(BadParameter, match=r"is not a rule \(.*\); give a function of gram"):
            randeigen.aggregate("nowhere.npy", rule=function, f=2)

    def test_it_may_return_a_tensor_that_has_a_gradient(self) -> None:
        torch = pytest.importorskip("torch")
        even = torch.full((20,), 1 / 20, requires_grad=True)
        assert randeigen.aggregate(cloud(), rule=lambda gram: even, f=2).weights == pytest.approx(1 / 20)


class TestConfigurationsHoldNames:
    """In the laboratory, rules, attacks and servers are named as on the command line."""

    @pytest.fixture(autouse=True)
    def _lab(self) -> None:
        pytest.importorskip("torch")

    def test_they_take_the_grammar_of_the_command(self) -> None:
        pytest.importorskip("sklearn")
        config = randeigen.lab.FederatedConfig(
            rule="nnm+krum", attack="mra:boost=5", server="adam:eta=0.01", clients=10, rounds=1, epochs=1
        )
        assert randeigen.lab.run(config).spec.rule == "nnm+krum"

    @pytest.mark.parametrize(
        ("told", "words"),
        [
            ({"rule": rules.Krum}, r"a class; a configuration holds names.*run\(config, rule="),
            ({"rule": rules.Krum(f=2)}, r"a value; a configuration holds names"),
            ({"attack": len}, "a configuration holds names"),
            ({"server": 3}, "a configuration holds names"),
            ({"f": 25}, "fewer than half of the 50 clients"),
            ({"f": 5, "eps": 0.1}, "one of eps and f"),
        ],
    )
    def test_what_is_no_name_is_explained(self, told: dict[str, Any], words: str) -> None:
        with pytest.raises(BadParameter, match=words):
            randeigen.lab.FederatedConfig(**told)

    @pytest.mark.parametrize(
        ("told", "words"),
        [
            ({"attack": "hidra"}, r"FederatedConfig\(attack='hidra'\)"),
            ({"rule": "krum"}, r"FederatedConfig\(rule='krum'\)"),
            ({"server": "adam"}, r"FederatedConfig\(server='adam'\)"),
            ({"rule": rules.Krum}, r"make one of it: Krum"),
        ],
    )
    def test_a_name_beside_the_configuration_is_sent_there(self, told: dict[str, Any], words: str) -> None:
        with pytest.raises(BadParameter, match=words):
            randeigen.lab.run(randeigen.lab.FederatedConfig(clients=5, rounds=1), **told)

    def test_f_is_a_number_of_clients(self) -> None:
        config = randeigen.lab.FederatedConfig(clients=50, f=7)
        assert config.eps == 7 / 50
        assert replace(config, rounds=3).eps == 7 / 50
        assert "f" not in asdict(config), "records hold eps"

    def test_f_is_a_number_of_images_of_the_victim(self) -> None:
        pytest.importorskip("sklearn")
        config = randeigen.lab.CentralizedConfig("digits", "label-flip", f=7)
        train = randeigen.lab.prepare(config).train
        assert int(train.poison.sum()) == 7
        assert replace(config, seed=3).eps == 7 / len(train.labels)
        pretrained = randeigen.lab.CentralizedConfig("digits", f=7, start="pretrained")
        assert pretrained.eps == 7 / 519, "half of what is left when a fifth is set aside"
        assert "f" not in asdict(config), "records hold eps"

    @pytest.mark.parametrize("kind", ["FederatedConfig", "CentralizedConfig"])
    @pytest.mark.parametrize(
        "options", [{"f": -1}, {"f": 10**6}, {"f": 2.0}, {"f": 1, "eps": 0.2}, {"f": 1, "eps": 0.05}]
    )
    def test_f_is_given_in_place_of_eps(self, kind: str, options: dict[str, Any]) -> None:
        """Also where eps is what it would be without it."""
        with pytest.raises(BadFraction, match=r"one of eps and f|fewer than half of the"):
            getattr(randeigen.lab, kind)(**options)


@pytest.mark.parametrize("command", ["aggregate", "decide", "simulate", "train", "sweep", "bench"])
def test_every_command_with_eps_has_f(command: str) -> None:
    typer = pytest.importorskip("typer")
    from randeigen.cli.app import app

    options = {
        name for each in typer.main.get_command(app).get_command(None, command).params for name in each.opts
    }
    assert {"--eps", "--f"} <= options


def test_every_public_callable_with_eps_has_f() -> None:
    pytest.importorskip("torch")
    rooms = (randeigen, randeigen.torch, randeigen.lab, randeigen.distributed)
    public = [getattr(room, name) for room in rooms for name in room.__all__]
    public += [method for each in public for _, method in inspect.getmembers(each, inspect.isfunction)]
    with_eps = 0
    for each in public:
        if inspect.isfunction(each) or (isinstance(each, type) and not issubclass(each, Exception)):
            parameters = inspect.signature(each).parameters
            with_eps += "eps" in parameters
            assert ("eps" in parameters) <= ("f" in parameters), each
    assert with_eps > 15


class TestAResultReads:
    @pytest.mark.parametrize("n", [3, 200])
    @pytest.mark.parametrize("rule", ["randeigen", "median"])
    def test_it_fits_a_screen(self, n: int, rule: str) -> None:
        rows = cloud(n, 400)
        rows[2 : 2 + n // 5] = np.nan
        text = str(randeigen.aggregate(rows, eps=0.3, rule=rule))
        assert len(text.splitlines()) <= 14
        assert max(map(len, text.splitlines())) <= 100
        assert "bias_bound" in text

    def test_a_notebook_gets_a_table_in_which_nothing_is_markup(self) -> None:
        result = randeigen.aggregate([{"<b>": row} for row in cloud()], f=2)
        html = result._repr_html_()
        assert "<table>" in html
        assert "&lt;b&gt;" in html
        assert "<b>" not in html

    def test_names_of_strangers_are_spelled_out_and_cut(self) -> None:
        name = "\x1b[2J\u202e<script>" + "x" * 10_000
        texts = [str(randeigen.aggregate([{name: row} for row in cloud()], f=2))]
        inspection = randeigen.inspect(cloud(), names=[f"{name}{client}" for client in range(20)])
        texts += [str(inspection), inspection.advice, inspection._repr_html_()]
        for text in texts:
            assert all(c.isprintable() or c == "\n" for c in text)
            assert len(text) < 5_000
            assert r"\x1b[2J\u202e" in text
        assert "<script>" not in texts[-1]

    def test_so_do_inspections_and_their_opinions(self) -> None:
        rows = cloud(200, 400)
        found = randeigen.inspect(rows, seed=1)
        for value in (found, found.ask(f=2)):
            assert len(repr(value)) < 100
            assert len(str(value).splitlines()) <= 24
            assert max(map(len, str(value).splitlines())) <= 100
            assert value._repr_html_().startswith("<")

    def test_the_prompt_shows_one_line(self) -> None:
        assert repr(randeigen.aggregate(cloud(), f=2)).startswith(
            "<Aggregate of 20 rows: 18 kept, bias_bound"
        )
