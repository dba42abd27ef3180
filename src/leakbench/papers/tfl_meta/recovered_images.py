"""Figure S8: images that DLG recovers without protection, at the paper's optima, and under protection that is felt."""

from __future__ import annotations

import math
from typing import NamedTuple

from leakbench.lazy import pd, torch
from leakbench.metrics.image import psnr
from leakbench.papers.tfl_meta.common import figure
from leakbench.papers.tfl_meta.fronts import added
from leakbench.papers.tfl_meta.measured import CONSTANTS, ENCRYPTED, IN_USE, MASKED, READ, SWEPT, THRESHOLD, TUNED
from leakbench.report.artifacts import Tables
from leakbench.report.gallery import gallery, selection
from leakbench.report.gate_verdicts import VOID
from leakbench.report.labels import Reads, reads
from leakbench.report.plots import Drawing, having
from leakbench.report.record_tensors import RecordTensors
from leakbench.report.tidy import SETTING, cells_of

EACH = 2
SEED = 0


class Shown(NamedTuple):
    """A row of images.

    Attributes:
        name: in words; ``{value:g}`` is the parameter.
        experiment: that has it.
        defense: its label.
        attack: its label.
        parameter: that is swept; empty if none is.
        value: of the parameter; the nearest that there is, by its logarithm.
    """

    name: str
    experiment: str
    defense: str
    attack: str = "dlg"
    parameter: str = ""
    value: float = 1.0


ROWS = (
    Shown("no protection", CONSTANTS, "none"),
    Shown("noise, optimum", TUNED, "tuned-noise", parameter="budget"),
    Shown("compression, optimum", TUNED, "tuned-compression", parameter="budget"),
    Shown("masks, optimum, exact TV", TUNED, "tuned-masks-exact", parameter="budget"),
    Shown("masks, optimum", TUNED, "tuned-masks", parameter="budget"),
    Shown("Paillier, a key in use", ENCRYPTED, IN_USE, parameter="budget"),
    Shown("noise, {value:g}", SWEPT, "noise", parameter="scale", value=0.1),
    Shown("{value:.0%} dropped", SWEPT, "compression", parameter="probability", value=0.5),
    Shown("{value:.0%} dropped, attack on the rest", MASKED, "compression", "masked-dlg", "probability", 0.5),
    Shown("same, the rest scaled up", MASKED, "rescaled", "masked-dlg", "probability", 0.5),
)


def _read_of(experiment: str) -> Reads:
    """The defenses and attacks of the rows, and the paper's defenses, which are no user's."""
    rows = [row for row in ROWS if row.experiment == experiment]
    known = READ[SWEPT].defenses if experiment == SWEPT else ()
    return reads(experiment, defenses=[*(row.defense for row in rows), *known], attacks=[row.attack for row in rows])


@figure(
    "S8",
    title="Images recovered without protection, at the optima, and under strong protection",
    caption="The first attempt of DLG on one seed's clients at the first model. Optima: the parameters that the "
    "paper's metric asks for at a budget of epsilon = C1; of masks by its model, whose mask is just wider than the "
    "values of one client, and by the law of a value plus a mask. Below: the standard deviation of noise, and the part "
    "of coordinates that is dropped. Attack on the rest: it leaves out what was dropped, and takes back a scaling of "
    "the rest. Images by the PSNR without protection: the best, the median and the worst ones; below each its PSNR, of "
    "pixels in [0, 1]. A single attempt may fail without any protection.",
    experiments=[_read_of(name) for name in (CONSTANTS, TUNED, ENCRYPTED, SWEPT, MASKED)],
    tensors=(CONSTANTS, TUNED, ENCRYPTED, SWEPT, MASKED),
)
def fig_s8(tables: Tables, stored: RecordTensors) -> Drawing:
    """Truth above a row per protection."""
    victims: torch.Tensor | None = None
    images: dict[str, torch.Tensor] = {}
    void = False
    for shown in (*ROWS, *(Shown(label, SWEPT, label) for label in added(tables[SWEPT]))):
        frame = tables[shown.experiment]
        frame = frame[(frame["defense"] == shown.defense) & (frame["attack"] == shown.attack)]
        if frame.empty:
            continue
        frame = frame[frame["dataset"] == cells_of(frame)[0][0]]
        place, value = setting(frame, shown)
        if shown.defense in added(tables[SWEPT]):
            place = stored.place(shown.experiment, shown.defense, shown.attack, SEED)
        tensors = stored.tensors(shown.experiment, shown.defense, shown.attack, SEED)
        if victims is None:
            victims = tensors[f"seed{SEED}/victims"].flatten(0, 1)
        name = shown.name.format(value=value) if shown.parameter else shown.name
        images[name] = tensors[f"seed{SEED}/reconstructions"][place].flatten(0, 1)
        void |= bool(frame["void"].any())
    assert victims is not None
    decibels = {name: psnr(pixels.nan_to_num().clamp(0, 1), victims) for name, pixels in images.items()}
    order = next(iter(decibels.values()))
    drawn = gallery(
        victims,
        images,
        order,
        each=EACH,
        size=0.85,
        title=VOID if void else None,
        victims_label="truth",
        decibels=decibels,
    )
    numbers = [
        {"series": name, "group": group, "image": image, "psnr": float(values[image]), "void": void}
        for name, values in decibels.items()
        for group, chosen in selection(order, EACH).items()
        for image in chosen
    ]
    return Drawing(drawn, pd.DataFrame(numbers))


def setting(frame: pd.DataFrame, shown: Shown) -> tuple[int, float]:
    """The place and the value of the setting of a record that a row shows.

    Args:
        frame: of one job, in the order of its record.
        shown: the row of pictures.
    """
    if not shown.parameter:
        return 0, math.nan
    tests = having(frame, shown.parameter)[[SETTING + shown.parameter, THRESHOLD]].drop_duplicates()
    values = tests[SETTING + shown.parameter].tolist()
    near = min(values, key=lambda value: abs(math.log(max(value, 1e-12) / shown.value)))
    return values.index(near), float(near)
