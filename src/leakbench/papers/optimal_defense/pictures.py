"""Figures 8 and 10: reconstructions of one batch."""

from __future__ import annotations

from collections.abc import Mapping

from leakbench.lazy import pd
from leakbench.papers.optimal_defense.common import ATTACK, ATTACK_CIFAR, figure
from leakbench.report.artifacts import Tables
from leakbench.report.gallery import gallery
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing, series_of
from leakbench.report.record_tensors import RecordTensors

NOISE = {"dpsgd-0.05": "clipped noise 0.05", "optimal-0.1": "optimal noise 0.1"}
PRUNING = {"gp-90": "gradient pruning 90 %", "op-80": "optimal pruning 80 %"}
ORDER = (
    "A gradient does not determine the order of its images: every reconstruction is shown below the image that the "
    "assignment with the least error in the batch gives it, with its PSNR (pixels in [0, 1]). Attack: Inverting "
    "Gradients with the true labels, not adapted to the defense."
)


def _pictures(tables: Tables, stored: RecordTensors, experiment: str, attack: str, names: Mapping[str, str]) -> Drawing:
    """One batch: the truth above its reconstructions under every defense of an experiment."""
    defended = series_of(tables[experiment], names)
    rows = {
        name if len(settings) == 1 else f"{name} {number}": row
        for defense, name in {"none": "no defense", **defended}.items()
        for settings in [stored.reconstructions(experiment, defense, attack)]
        for number, row in enumerate(settings)
    }
    victims = next(iter(rows.values())).victims
    drawn = gallery(
        victims,
        {name: row.images for name, row in rows.items()},
        None,
        size=1.15,
        victims_label="truth",
        decibels={name: row.psnr for name, row in rows.items()},
    )
    numbers = [
        {"series": name, "image": image, "psnr": decibels}
        for name, row in rows.items()
        for image, decibels in enumerate(row.psnr.tolist())
    ]
    return Drawing(drawn, pd.DataFrame(numbers))


@figure(
    8,
    title="Reconstructions under noise",
    caption=f"One batch of images, attacked at initialisation. {ORDER}",
    experiments=(reads("pictures", defenses=("none", *NOISE), attacks=ATTACK),),
    tensors=("pictures",),
)
def fig08(tables: Tables, stored: RecordTensors) -> Drawing:
    """Truth, no defense, clipped noise at scale 0.05, optimal noise at scale 0.1."""
    return _pictures(tables, stored, "pictures", ATTACK, NOISE)


@figure(
    10,
    title="Reconstructions under pruning on CIFAR-10",
    caption=f"One batch of images, attacked at initialisation. {ORDER}",
    experiments=(reads("cifar_pictures", defenses=("none", *PRUNING), attacks=ATTACK_CIFAR),),
    tensors=("cifar_pictures",),
)
def fig10(tables: Tables, stored: RecordTensors) -> Drawing:
    """Truth, no defense, gradient pruning at 90 %, optimal pruning at 80 %."""
    return _pictures(tables, stored, "cifar_pictures", ATTACK_CIFAR, PRUNING)
