"""The claims about CDPA on tables that are made so that each verdict is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.papers.verdicts import Case, Tables, judge
from tests.report.tables import cube, rows, table

from leakbench.papers.cdpa.claims import ATTACKED, OTHERS, ROWS
from leakbench.papers.cdpa.figure_claims import GRIDS, ORDER, SINGLE, TRAINED_AS, TRAINED_IN

judged = partial(judge, "cdpa")
SIMPLE, CONV, RESNET = (("cifar10", model) for model in ("simplecnn", "convnet8", "resnet18"))
MODELS = (SIMPLE, CONV, RESNET)
ROG = ("imagenet128", "rog-resnet18")
KEEPS = (0.8, 0.9, 0.95, 0.98)
ALPHAS = (0.1, 1.0)


def trained(defense: str, cell: tuple[str, str], /, **metrics: float) -> pd.DataFrame:
    """A defense's metrics after training, without a sweep."""
    return table(*(rows(defense, name, cube([mean]), cell=cell) for name, mean in metrics.items()))


def swept(
    defense: str, sweep: str, points: Sequence[float], cell: tuple[str, str], /, **metrics: Sequence[float]
) -> pd.DataFrame:
    found = table(
        *(rows(defense, name, cube(means), points=points, sweep=sweep, cell=cell) for name, means in metrics.items())
    )
    return found.assign(axis=None)


ASSIGNED = {"psnr": "assigned_psnr", "ssim": "assigned_ssim_global", "lpips": "assigned_lpips"}
"""Metrics of ROG's batches, of which SSIM has one window."""


def attacked(
    defense: str, attack: str, cell: tuple[str, str], metrics: Mapping[str, float], *, void: bool = False
) -> pd.DataFrame:
    """Metrics of an attack; those of ROG's batches after assignment."""
    names = ASSIGNED if cell == ROG else {}
    return table(
        *(
            rows(defense, names.get(name, name), cube([mean], units=3), attack=attack, cell=cell, void=void)
            for name, mean in metrics.items()
        )
    )


def over_p(attack: str, **metrics: Sequence[float]) -> pd.DataFrame:
    shared: dict[str, Any] = {"points": KEEPS, "sweep": "p", "attack": attack, "cell": ROG}
    return table(
        *(rows("cdpa-rog-p", ASSIGNED[name], cube(means, units=3), **shared) for name, means in metrics.items())
    )


Utility = Mapping[tuple[str, str], Mapping[str, float]]


def utility(metric: str, of: Callable[[str, tuple[str, str]], float]) -> Tables:
    """One metric of every defense and model."""
    defenses = ("none", *OTHERS, "cdpa")
    return {"utility": table(*(trained(d, cell, **{metric: of(d, cell)}) for cell in MODELS for d in defenses))}


def accurate(changes: Mapping[tuple[str, str], float]) -> Tables:
    """Accuracies as in Table IV, roughly; ``changes`` by defense and model."""
    names = {cell[1]: {"none": 0.79, "cdpa": 0.795, "sign-sgd": 0.2, "cafl": 0.35} for cell in MODELS}
    names["simplecnn"] |= {"sign-sgd": 0.5, "cafl": 0.4}
    names["convnet8"] |= {"sign-sgd": 0.3, "cafl": 0.7}
    return utility("accuracy", lambda d, cell: changes.get((d, cell[1]), names[cell[1]].get(d, 0.78)))


def communicated(**elements: float) -> Tables:
    return utility("mebi_elements", lambda d, _: elements.get(d, 1.0))


def carbon(of: Callable[[str, str], float]) -> Tables:
    return utility("carbon_formula_kg", lambda d, cell: of(d, cell[1]))


def reconstructed(
    likeness: float, others: float, *, lpips: bool = True, void: bool = False, attacks: Sequence[str] = ("rog",)
) -> Tables:
    """CDPA's likeness and that of all other rows, as every metric."""

    def metrics(value: float) -> dict[str, float]:
        return {"psnr": 30 * value, "ssim": value, "lpips": 1 - value if lpips else np.nan}

    parts = [attacked("none", "grey", ROG, {"psnr": 11.3})]
    for attack in attacks:
        parts += [attacked(row, attack, ROG, metrics(others), void=void) for row in ROWS]
        parts.append(attacked("cdpa-rog", attack, ROG, metrics(likeness), void=void))
    return {"rog": table(*parts)}


def inverted(lpips: Mapping[tuple[str, str], float], *, metric: str = "lpips") -> Tables:
    """LPIPS, or what else, by defense and attack; 0.5 and 0.6 elsewhere."""
    parts = []
    for defense in ("none", *ATTACKED, "cdpa-rog"):
        for attack, usual in (("ig", 0.5), ("dlg", 0.6)):
            value = lpips.get((defense, attack), usual)
            of = {metric: value} if metric == "lpips" else {metric: 1 - value, "lpips": np.nan}
            parts.append(attacked(defense, attack, SIMPLE, of))
    return {"inversion": table(*parts)}


WORST = {("cdpa-rog", "ig"): 0.7, ("cdpa-rog", "dlg"): 0.8}
BETTER = {("cdpa-rog", "ig"): 0.3, ("cdpa-rog", "dlg"): 0.8}


def kept(**metrics: Sequence[float]) -> Tables:
    return {"utility_p": swept("cdpa-p", "p", KEEPS, RESNET, **metrics)}


def kept_under_rog(**metrics: Sequence[float]) -> Tables:
    """CDPA over p, and ROG's experiment without reference attackers."""
    return {"rog_p": over_p("rog", **metrics), "rog": attacked("none", "rog", ROG, {"psnr": 20.0})}


def imputed(change: float, lpips: float = np.nan) -> Tables:
    """What imputation adds to PSNR and SSIM."""
    parts = [over_p("rog", psnr=[5, 5, 5, 5], ssim=[0.2] * 4)]
    parts += [
        over_p(attack, psnr=[5 + change] * 4, ssim=[0.2 + change / 100] * 4, lpips=[lpips] * 4)
        for attack in ("rog-imputed-mean", "rog-imputed-zero")
    ]
    return {"rog_p": table(*parts)}


def gaps(plain: float, over: Sequence[float]) -> Tables:
    return kept(generalisation_gap=over) | {"utility": trained("none", RESNET, generalisation_gap=plain)}


def nominal(laplace: Sequence[float], cdpa: float) -> Tables:
    return (
        kept(accuracy=[cdpa, 0.79, 0.79, 0.79])
        | {"utility": trained("none", RESNET, accuracy=0.79)}
        | {"utility_epsilon": swept("laplace-eps", "epsilon", (1.0, 2.0, 4.0, 8.0), RESNET, accuracy=laplace)}
    )


def informed(
    attack: str,
    found: Mapping[str, float],
    defense: str = "cdpa-rog",
    *,
    undefended: float = 25.0,
    void: bool = False,
) -> Tables:
    """What informed attackers reach under a defense; undefended the attack inside has 25 dB, and they what is given."""
    plain, cell = ("rog", ROG) if attack == "rog" else ("inversion", SIMPLE)
    adaptive = [
        attacked(label, f"{attack}-{way}", cell, {"psnr": value if label == defense else undefended})
        for way, value in found.items()
        for label in ("none", defense)
    ]
    return {
        plain: attacked("none", attack, cell, {"psnr": 25.0}, void=void),
        f"{plain}_adaptive": table(*adaptive),
    }


def skewed(voted: float, corrected: float, diverged: bool = False) -> Tables:
    shared: dict[str, Any] = {"points": ALPHAS, "sweep": "alpha", "cell": SIMPLE}
    parts = [rows("none", "accuracy", cube([0.8, 0.8]), **shared)]
    for variant, mean in (("as_printed", voted), ("as_released", 0.1), ("corrected", corrected)):
        values = cube([mean, mean])
        if diverged and variant == "as_printed":
            values[:, :9] = np.nan
        parts.append(rows("cdpa-variants", "accuracy", values, where={"variant": variant}, **shared))
    return {"skewed": table(*parts).assign(axis=None)}


def last_layer(accuracy: float, skewed: float = 0.0) -> Tables:
    """CDPA with its last layer alone protected; of all its linear layers it is worse."""
    of_layers = {"last": (accuracy, skewed), "linear": (0.1, 0.1)}
    plain = rows("none", "accuracy", cube([0.8, 0.8]), points=ALPHAS, sweep="alpha", cell=SIMPLE)
    readings, by_alpha = [], [plain]
    for layers, (iid, apart) in of_layers.items():
        where = {"layers": layers}
        readings.append(rows("cdpa-layers", "accuracy", cube([iid]), where=where, cell=SIMPLE))
        by_alpha.append(
            rows("cdpa-layers", "accuracy", cube([apart] * 2), points=ALPHAS, sweep="alpha", where=where, cell=SIMPLE)
        )
    return {**accurate({}), "readings": table(*readings), "skewed": table(*by_alpha).assign(axis=None)}


def frugal(d: str, _: str) -> float:
    return {"none": 1.0, "cdpa": 1.2}.get(d, 5.0)


def quick(d: str, _: str) -> float:
    return {"cdpa": 1.2, "sdq": 1.2}.get(d, 1.0)


def slow(d: str, model: str) -> float:
    return {"none": 1.0, "cdpa": {"simplecnn": 1.2}.get(model, 1.5), "sdq": 1.0}.get(d, 1.0)


def of_table(d: str, model: str) -> float:
    """Overheads like those of Table IV, which grow from ConvNet to ResNet18."""
    return {"simplecnn": 1.7, "convnet8": 1.3, "resnet18": 1.5}[model] if d == "cdpa" else 1.0


def shrinking(d: str, model: str) -> float:
    return {"simplecnn": 1.7, "convnet8": 1.4, "resnet18": 1.2}[model] if d == "cdpa" else 1.0


def losses(ratio: float) -> Tables:
    """Losses over three rounds; CDPA's ends at ``ratio`` of FedAvg's."""
    frames = [
        rows(defense, "loss_curve", cube([2.3, 1.5, last]), points=[0, 1, 2], cell=cell)
        for cell in MODELS
        for defense, last in (("none", 1.0), ("cdpa", ratio))
    ]
    return {"utility": table(*frames)}


def cornered(accuracy: float) -> Tables:
    """CDPA with an accuracy, and less similar than all others."""
    return accurate({("cdpa", "resnet18"): accuracy}) | reconstructed(0.2, 0.5)


def balanced(carbon_of_cdpa: float) -> Tables:
    """Others are worst on one axis each, and else better than CDPA, which with little carbon is nowhere the worst."""
    worst = {"grad-drop": "privacy", "cafl": "accuracy", "jopeq": "carbon", "laplace": "size", "soteria": "size"}
    parts, seen = [], []
    for sent, label in {"none": "none", **TRAINED_AS, "cdpa-rog": "cdpa"}.items():
        bad = worst.get(label, "size" if label == "none" else "")
        numbers = {
            "accuracy": {"cafl": 0.4, "cdpa": 0.7}.get(label, 0.8),
            "carbon_formula_kg": {"jopeq": 5.0, "cdpa": carbon_of_cdpa}.get(label, 1.0),
            "mebi_elements": 1.0 if bad == "size" else 0.5 if label == "cdpa" else 0.4,
        }
        parts.append(trained(label, RESNET, **numbers))
        likeness = 0.9 if label in ("grad-drop", "none") else 0.4 if label == "cdpa" else 0.3
        seen.append(attacked(sent, "rog", ROG, {"ssim": likeness, "lpips": 1 - likeness}))
    return {"utility": table(*parts), "rog": table(*seen)}


def over_grids(ssim: float) -> Tables:
    """Baselines as accurate as CDPA, whose reconstructions have this SSIM where CDPA's have 0.2."""
    frames, seen = {name: [trained("cdpa", RESNET, accuracy=0.8)] for name in ("utility", "utility_grids")}, []
    frames["utility_epsilon"] = []
    for label in (*GRIDS, *SINGLE):
        where = TRAINED_IN.get(label, "utility_grids")
        if label in GRIDS:
            frames[where].append(swept(label, GRIDS[label], (1.0, 2.0), RESNET, accuracy=(0.5, 0.8)))
            over = {"points": (1.0, 2.0), "sweep": GRIDS[label], "attack": "rog", "cell": ROG}
            seen.append(rows(label, ASSIGNED["ssim"], cube([ssim, ssim], units=3), **over))  # type: ignore[arg-type]
        else:
            frames[where].append(trained(label, RESNET, accuracy=0.8))
            seen.append(attacked(label, "rog", ROG, {"ssim": ssim}))
    tables = {name: table(*parts) for name, parts in frames.items()}
    return tables | {"rog": attacked("cdpa-rog", "rog", ROG, {"ssim": 0.2}), "rog_grids": table(*seen)}


def ranked(order: Sequence[str]) -> Tables:
    return {"rog": table(*(attacked(row, "rog", ROG, {"psnr": 20.0 - place}) for place, row in enumerate(order)))}


RISING, FALLING = (0.77, 0.78, 0.79, 0.8), (0.8, 0.79, 0.78, 0.77)
CASES: dict[str, Case] = {
    "E1": (lambda: reconstructed(0.2, 0.5, attacks=("rog", "rog-post")), lambda: reconstructed(0.6, 0.5)),
    "E2": (
        lambda: inverted({("sign-sgd", "ig"): 0.13, ("sdq", "ig"): 0.25}),
        lambda: inverted({("sign-sgd", "ig"): 0.13, ("sdq", "ig"): 0.3}),
    ),
    "E3": (lambda: inverted(WORST), lambda: inverted(BETTER)),
    "E4": (lambda: inverted(WORST), lambda: inverted(WORST | {("soteria", "ig"): 0.7})),
    "E5": (lambda: communicated(cdpa=0.475), lambda: communicated(cdpa=0.46)),
    "E6a": (lambda: accurate({}), lambda: accurate({("jopeq", "convnet8"): 0.81})),
    "E6b": (lambda: accurate({}), lambda: accurate({("cdpa", "simplecnn"): 0.78})),
    "E6c": (lambda: accurate({("cdpa", "simplecnn"): 0.5}), lambda: accurate({("cdpa", "resnet18"): 0.7})),
    "E7a": (lambda: accurate({}), lambda: accurate({("cafl", "resnet18"): 0.6})),
    "E7b": (lambda: accurate({}), lambda: accurate({("sign-sgd", "convnet8"): 0.6})),
    "E8a": (lambda: kept(accuracy=RISING), lambda: kept(accuracy=FALLING)),
    "E8b": (
        lambda: kept_under_rog(psnr=[4, 4.5, 5, 6], ssim=[0.1, 0.2, 0.3, 0.4]),
        lambda: kept_under_rog(psnr=[4, 4.5, 5, 6], ssim=[0.4, 0.3, 0.2, 0.1]),
    ),
    "E9": (
        lambda: kept(accuracy=(0.785, 0.79, 0.79, 0.8)) | {"rog_p": over_p("rog", lpips=[0.73, 0.732, 0.73, 0.73])},
        lambda: kept(accuracy=(0.785, 0.79, 0.79, 0.8)) | {"rog_p": over_p("rog", lpips=[0.73, 0.732, 0.73, 0.75])},
    ),
    "E10": (lambda: gaps(0.9, (0.5, 0.6, 0.7, 0.8)), lambda: gaps(0.75, (0.5, 0.6, 0.7, 0.8))),
    "E11a": (lambda: imputed(4, lpips=0.75), lambda: imputed(4, lpips=0.6)),
    "E11b": (lambda: imputed(4), lambda: imputed(-1)),
    "E12a": (lambda: communicated(soteria=0.995), lambda: communicated(soteria=0.5)),
    "E12b": (lambda: communicated(soteria=0.506), lambda: communicated(soteria=0.995)),
    "E13a": (lambda: carbon(frugal), lambda: carbon(slow)),
    "E13b": (lambda: carbon(frugal), lambda: carbon(slow)),
    "E14a": (lambda: carbon(shrinking), lambda: carbon(slow)),
    "E14b": (lambda: carbon(of_table), lambda: carbon(slow)),
    "E15a": (lambda: accurate({("cafl", "resnet18"): 0.265}), lambda: accurate({})),
    "E15b": (lambda: accurate({}), lambda: accurate({("cafl", "resnet18"): 0.6})),
    "E16": (lambda: nominal((0.1, 0.5, 0.7, 0.78), 0.775), lambda: nominal((0.7, 0.7, 0.7, 0.78), 0.775)),
    "E17a": (lambda: carbon(quick), lambda: carbon(slow)),
    "E17b": (lambda: carbon(quick), lambda: carbon(slow)),
    "E24": (lambda: losses(1.05), lambda: losses(1.3)),
    "E25": (
        lambda: inverted({("soteria", "ig"): 0.6, ("soteria", "dlg"): 0.7}),
        lambda: inverted({("soteria", "ig"): 0.6, ("grad-drop", "dlg"): 0.7}),
    ),
    "E26": (lambda: cornered(0.795), lambda: cornered(0.7)),
    "E27": (lambda: balanced(1.2), lambda: balanced(9.0)),
    "E28": (lambda: over_grids(0.5), lambda: over_grids(0.1)),
    "E29": (lambda: ranked(ORDER), lambda: ranked(ORDER[::-1])),
    "X1a": (
        lambda: informed("rog", {"cleared": 8.0, "dropped": 24.0}),
        lambda: informed("rog", {"cleared": 8.0, "dropped": 16.0}),
    ),
    "X1b": (
        lambda: informed("rog", {"robust": 9.0, "adaptive": 24.0}, "cdpa-rog-all"),
        lambda: informed("rog", {"robust": 16.0}, "cdpa-rog-all"),
    ),
    "X1c": (lambda: informed("ig", {"cleared": 25.0}), lambda: informed("ig", {"cleared": 9.0, "robust": 20.0})),
    "X1d": (
        lambda: informed("rog", {"averaged": 24.0}, "cdpa-rog-delta"),
        lambda: informed("rog", {"averaged": 16.0}, "cdpa-rog-delta"),
    ),
    "X1e": (
        lambda: informed("ig", {"cleared": 9.0, "adaptive": 24.0}, "cdpa-ig-delta"),
        lambda: informed("ig", {"cleared": 16.0}, "cdpa-ig-delta"),
    ),
    "X2": (lambda: imputed(11), lambda: imputed(4.4)),
    "X3": (lambda: skewed(0.6, 0.79), lambda: skewed(0.81, 0.79)),
    "X4": (lambda: skewed(0.6, 0.79), lambda: skewed(0.6, 0.65)),
    "X13a": (lambda: last_layer(0.795), lambda: last_layer(0.7)),
    "X13b": (lambda: last_layer(0.79), lambda: last_layer(0.78)),
    "X13c": (lambda: last_layer(0.79, 0.6), lambda: last_layer(0.79, 0.85)),
    "X6": (lambda: reconstructed(0.2, 0.5), lambda: reconstructed(0.6, 0.5)),
}


@pytest.mark.parametrize("key", ["E1", "E2", "E3", "E8b", "E11a", "E11b", "X1a", "X2", "X6"])
def test_attacks_that_missed_their_gate_decide_nothing(key: str) -> None:
    for case in CASES[key]:
        tables = {name: frame.assign(void=True) for name, frame in case().items()}
        finding = judged(key, tables)
        assert finding.verdict == "inconclusive" and "missed its gate" in finding.note


def test_a_weak_undefended_attack_voids_the_informed_ones() -> None:
    finding = judged("X1a", informed("rog", {"cleared": 24.0}, void=True))
    assert finding.verdict == "inconclusive" and "missed its gate" in finding.note


@pytest.mark.parametrize(("soteria", "verdict"), [(1.5, "reproduced"), (1.05, "inconclusive"), (0.95, "inconclusive")])
def test_a_time_that_was_measured_once(soteria: float, verdict: str) -> None:
    """Seeds that agree to a digit say nothing of the error of the one measurement that they share."""
    finding = judged("E13b", carbon(lambda defense, _: soteria if defense == "soteria" else 1.0))
    assert (finding.verdict, finding.p) == (verdict, None) and "one measurement of time" in finding.note


def test_a_weak_informed_attacker_is_left_out() -> None:
    tables = informed("rog", {"cleared": 24.0, "dropped": 8.0})
    adaptive = tables["rog_adaptive"]
    adaptive.loc[adaptive["attack"] == "rog-dropped", "void"] = True
    finding = judged("X1a", tables)
    assert finding.verdict == "reproduced" and "without rog-dropped, too weak" in finding.note


class TestWithoutLpips:
    def test_the_table_is_judged_by_what_there_is(self) -> None:
        finding = judged("E1", reconstructed(0.2, 0.5, lpips=False))
        assert finding.verdict == "reproduced" and "LPIPS was not measured" in finding.note

    @pytest.mark.parametrize(
        ("key", "values", "verdict"),
        [("E3", WORST, "reproduced"), ("E3", BETTER, "contradicted"), ("E4", WORST, "reproduced")],
    )
    def test_ssim_stands_in(self, key: str, values: Mapping[tuple[str, str], float], verdict: str) -> None:
        finding = judged(key, inverted(values, metric="ssim"))
        assert finding.verdict == verdict and "SSIM stands in for it" in finding.note

    def test_its_printed_numbers_have_no_counterpart(self) -> None:
        finding = judged("E2", inverted({}, metric="ssim"))
        assert finding.verdict == "not run" and "no counterpart in SSIM" in finding.note

    def test_imputation_is_not_judged_by_ssim(self) -> None:
        finding = judged("E11a", imputed(4))
        assert finding.verdict == "not run" and "no counterpart in SSIM" in finding.note

    def test_the_spread_is_that_of_accuracy(self) -> None:
        tables = kept(accuracy=(0.785, 0.79, 0.79, 0.8)) | {"rog_p": over_p("rog", lpips=[np.nan] * 4)}
        finding = judged("E9", tables)
        assert finding.verdict == "reproduced" and "judged by accuracy alone" in finding.note
        tables["utility_p"] = kept(accuracy=(0.6, 0.79, 0.79, 0.8))["utility_p"]
        assert judged("E9", tables).verdict == "contradicted"


def test_diverged_runs_classify_nothing() -> None:
    tables = skewed(0.79, 0.79, diverged=True)  # of those that did not, the mean would be FedAvg's but for a point
    finding = judged("X3", tables)
    assert finding.effect is not None and finding.effect == pytest.approx(0.8 - 0.25 * 0.79, abs=1e-3)
    assert "18 numbers lost" in finding.note


def test_the_networks_behind_rog_count_for_its_table() -> None:
    tables = reconstructed(0.2, 0.5)
    polished = reconstructed(0.6, 0.5, attacks=("rog-post",))["rog"]
    finding = judged("E1", {"rog": table(tables["rog"], polished)})
    assert finding.verdict == "contradicted" and "rog-post" in finding.note


def test_a_longer_search_gains_on_the_undefended_update_too() -> None:
    """An attacker who gains 4 dB from his search alone restores nothing by it."""
    restored = judged("X1a", informed("rog", {"robust": 24.0}, undefended=25.0))
    searched = judged("X1a", informed("rog", {"robust": 24.0}, undefended=29.0))
    assert (restored.verdict, searched.verdict) == ("reproduced", "contradicted")
    assert searched.effect == pytest.approx(-5, abs=1e-3) and "robust -5.0" in searched.note


def test_attackers_without_numbers_are_left_out() -> None:
    finding = judged("X1a", informed("rog", {"cleared": 24.0, "averaged": np.nan}))
    assert finding.verdict == "reproduced" and "cleared -1.0" in finding.note and "averaged" not in finding.note
    assert judged("X1a", informed("rog", {"averaged": np.nan})).verdict == "not run"


@pytest.mark.parametrize("key", ["E7a", "E15a", "E15b"])
def test_claims_of_a_model_need_it(key: str) -> None:
    frame = accurate({})["utility"]
    finding = judged(key, {"utility": frame[frame["model"] == "simplecnn"]})
    assert finding.verdict == "not run" and "the claim is of ResNet18" in finding.note


def test_sizes_need_two_models() -> None:
    frame = carbon(shrinking)["utility"]
    for key in ("E14a", "E14b"):
        assert judged(key, {"utility": frame[frame["model"] == "simplecnn"]}).verdict == "not run"


def beside_guesses(tables: Tables, experiment: str, metrics: Mapping[str, float]) -> Tables:
    """The same, and the mean image with these numbers on the victims of an experiment."""
    cell = ROG if experiment == "rog" else SIMPLE
    guessed = attacked("none", "mean_image", cell, metrics)
    return tables | {experiment: table(tables[experiment], guessed)}


@pytest.mark.parametrize(
    ("key", "tables"),
    [
        # Everything but FedAvg and CDPA is as good as the mean image or worse; CDPA is the worst, and hides no more.
        ("E1", beside_guesses(reconstructed(0.2, 0.5), "rog", {"psnr": 16.0, "ssim": 0.6, "lpips": 0.4})),
        ("E3", beside_guesses(inverted(WORST), "inversion", {"lpips": 0.4})),
        ("E8b", beside_guesses(kept_under_rog(psnr=[4, 5, 6, 7], ssim=[0.1, 0.2, 0.3, 0.4]), "rog", {"psnr": 9.0})),
        ("E25", beside_guesses(CASES["E25"][0](), "inversion", {"lpips": 0.1})),
        ("E26", beside_guesses(cornered(0.795), "rog", {"ssim": 0.6})),
        ("E28", beside_guesses(over_grids(0.5), "rog", {"ssim": 0.6})),
        ("E29", beside_guesses(ranked(ORDER), "rog", {"psnr": 17.5})),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_leaks_nothing_hides_no_more_than_another(key: str, tables: Tables) -> None:
    finding = judged(key, tables)
    assert finding.verdict == "inconclusive", finding
    assert judged(key, CASES[key][0]()).verdict == "reproduced"


def test_what_leaks_is_compared_with_the_guess() -> None:
    """15 dB count, and CDPA's 6 dB count as the 12 dB of the mean image, which is a better guess than grey."""
    tables = reconstructed(0.2, 0.5, lpips=False)
    tables["rog"] = tables["rog"][tables["rog"]["metric"] != ASSIGNED["ssim"]]
    finding = judged("E1", beside_guesses(tables, "rog", {"psnr": 12.0}))
    assert finding.verdict == "reproduced" and finding.effect == pytest.approx(3.0, abs=1e-3)
    assert "no reference attacker was measured" not in finding.note


def test_the_order_of_a_batch_is_none_of_rogs() -> None:
    """Numbers in the attack's order say the opposite, and are not read."""
    tables = reconstructed(0.2, 0.5)
    raw = reconstructed(0.6, 0.5)["rog"]
    raw = raw[raw["metric"].str.startswith("assigned_")]
    tables["rog"] = table(tables["rog"], raw.assign(metric=raw["metric"].str.removeprefix("assigned_")))
    assert judged("E1", tables).verdict == "reproduced"
